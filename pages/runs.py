"""Jobs, stored results, versions and downloads."""

import json

import streamlit as st

from dashboard import components, listing, loaders
from tier import environment, tables

preset = components.chosen()
components.title("Runs", "What is being computed, what is stored, with which versions, and everything to take along.")

st.subheader("Jobs", anchor=False)
listing.jobs()

st.subheader("Results of this preset", anchor=False)
runs = loaders.runs(preset)
if len(runs):
    listing.runs(runs)
    with st.container(horizontal=True):
        components.download(runs, f"runs_{preset.name}")
        text = json.dumps(tables.to_json(runs), indent=1)
        components.download(text, f"runs_{preset.name}", form="JSON")
    listing.weights(preset)
else:
    components.empty(preset, "results")

st.subheader("Store", anchor=False)
listing.store_contents()

st.subheader("Versions", anchor=False)
st.caption("What this server runs with. Every result keeps the versions that it was computed with, too.")
listing.versions(environment.snapshot())
