"""The dashboard's entry: `streamlit run dashboard/app.py`, from any folder."""

import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # Streamlit puts only this file's folder there
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from dashboard import components, loaders, sitemap, state, theme  # noqa: E402

st.set_page_config(page_title="TIER", page_icon=str(theme.ASSETS / "icon.svg"), layout="wide")
st.logo(str(theme.ASSETS / "logo.svg"), size="large", icon_image=str(theme.ASSETS / "icon.svg"))
state.begin()
page = st.navigation(sitemap.pages())
components.sidebar()
notes = st.container()  # filled last: a note is left while the page below chooses
try:
    page.run()
except Exception as error:  # the page's boundary: say what failed, keep the menu usable
    logging.getLogger(__name__).exception("the page %s could not be drawn", page.title)
    components.failed(error)
components.forget_requester()
state.end()
loaders.warm(components.chosen())
with notes:
    components.show_notes()
