"""Paper against here: which run answers to which number of the paper, and whether the two agree."""

from tier.reproduce.alternatives import CHOICES, alternative_jobs, alternative_rows
from tier.reproduce.files import PAPER_FIGURES, charts, triplets, write
from tier.reproduce.forms import KEYS, cell_text, frame, in_paper_form, latex, refusals, wide
from tier.reproduce.profiles import profile_rows, profiles
from tier.reproduce.protocol import PROTOCOLS, Protocol, drawn, jobs, protocol
from tier.reproduce.published import alternatives, place_of, publish
from tier.reproduce.verdicts import VERDICTS, Cell, Verdict, cells, counts, counts_by_table

__all__ = [
    "CHOICES",
    "KEYS",
    "PAPER_FIGURES",
    "PROTOCOLS",
    "VERDICTS",
    "Cell",
    "Protocol",
    "Verdict",
    "alternative_jobs",
    "alternative_rows",
    "alternatives",
    "cell_text",
    "cells",
    "charts",
    "counts",
    "counts_by_table",
    "drawn",
    "frame",
    "in_paper_form",
    "jobs",
    "latex",
    "place_of",
    "profile_rows",
    "profiles",
    "protocol",
    "publish",
    "refusals",
    "triplets",
    "wide",
    "write",
]
