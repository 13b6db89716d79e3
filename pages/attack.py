"""The attack from outside: what an attacker gets right, whether knowing the defense helps, all other attacks."""

import streamlit as st

from dashboard import attacking, battery, components, confusion, loaders, state

preset = components.chosen()
components.title(
    "Attack",
    """An attacker trains a model of their own on other images, learns there what members look like, and tries it on
    the models shown here. How many members are found, how often wrongly, and does it help to know the defense?""",
)
view = attacking.choose(preset)
if not attacking.stored(view) and not loaders.any_result(preset):
    components.empty(preset, "attacks")
    st.stop()
if attacking.stored(view):
    attacking.sentences(view)
else:
    attacking.nothing(view)
attacking.offer(view)
parts = {**attacking.TABS, "Other attacks": battery.show, "Threshold": confusion.show}
tabs = state.tabs(list(parts), key="view")
for name, draw in parts.items():
    if tabs[name].open:
        with tabs[name]:
            draw(view)
