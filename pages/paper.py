"""Paper vs here: every number that the paper prints beside ours, and whether the two agree."""

from dashboard import components, paper

components.title(
    "Paper vs here",
    """Every number of the paper's tables beside the one that this code gives on the same kind of data, with the
    conditions under which ours was made. Numbers that were not computed yet are listed as such.""",
)
view = paper.choose()
paper.summary(view)
paper.beside(view)
paper.table(view)
paper.inconsistencies(view)
paper.choices(view)
paper.curves(view)
paper.about(view)
