"""Should one use TIER, or something simpler? Accuracy against leak, at equal accuracy, and at what cost."""

import streamlit as st

from dashboard import components, tradeoff

preset = components.chosen()
components.title(
    "Trade-off",
    """Every defense costs something: accuracy on new images, training time, or a promise that is weaker than it looks.
    Here all of them stand in one plane, in several strengths. Does TIER leak less than simpler means that are as
    accurate?""",
)
view = tradeoff.choose(preset)
if view is None:
    components.empty(preset, "finished runs", f"sweep {preset.name} --seeds {len(preset.seeds)}")
    tradeoff.about(preset)
    st.stop()
tradeoff.plane(view)
tradeoff.one_run(view)
tradeoff.equal_accuracy(view)
tradeoff.training_time(view)
tradeoff.by_epochs(view)
tradeoff.about(preset)
