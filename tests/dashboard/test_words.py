"""The sentences follow the numbers, also where TIER does worse."""

import pandas as pd
import pytest

from dashboard import words
from tier import tables


def summary(tier_leak: float, tier_right: float) -> pd.DataFrame:
    rows = [
        {"model": "none", "seeds": 3, "leak": 0.90, "test_accuracy": 0.60},
        {"model": "augmentation", "seeds": 3, "leak": 0.60, "test_accuracy": 0.68},
        {"model": "tier_full", "seeds": 3, "leak": tier_leak, "test_accuracy": tier_right},
    ]
    return pd.DataFrame(rows)


def test_the_overview_says_when_augmentation_is_at_least_as_good() -> None:
    worse = words.overview(summary(0.65, 0.55))
    assert "90 of 100" in worse
    assert "5 more" in worse
    assert "13 fewer" in worse
    assert "at least as good in both" in worse
    better = words.overview(summary(0.55, 0.70))
    assert "5 fewer" in better
    assert "2 more" in better
    assert "at least as good" not in better


def test_a_range_without_width_is_one_number() -> None:
    row = {"seeds": 3, "leak_min": 0.861, "leak_max": 0.864, "test_accuracy_min": 0.6, "test_accuracy_max": 0.65}
    assert "the attack is right for 86, the model for 60 to 65 new images" in words.spread(row)


def test_the_overview_compares_nothing_that_is_missing() -> None:
    assert "nothing can be compared" in words.overview(summary(0.6, 0.6).head(2))


def gap(
    explainer: str, growth: float, grown: bool = False, model: str = "none", start: float = 0.45
) -> dict[str, object]:
    return {
        "explainer": explainer, "model": model, "start": start, "start_low": start - 0.02, "start_high": start + 0.02,
        "outside": start > 0.03, "level": 0.2, "difference": start + growth, "growth": growth, "chance": 0.03,
        "grown": grown,
    }  # fmt: skip


def test_trajectories_tell_the_start_from_what_the_explanation_adds() -> None:
    said = {
        growth: words.trajectories(pd.DataFrame([gap("gradient", growth, growth > 0.03)]))["none"]
        for growth in (-0.14, 0.0, 0.02, 0.1)
    }
    for text in said.values():
        assert text.startswith("with nothing removed, members' confidence differs from non-members' by +0.45")
        assert "outside the null band, and no explanation's doing" in text
    most = "does not widen that gap (the most on the way: {}, 20 % removed): no sign that the explanation adds"
    assert most.format("+0.31") in said[-0.14]
    assert most.format("+0.45") in said[0.0]
    assert "by no more than 0.02, which chance could make: no sign" in said[0.02]
    assert "widens that gap by 0.10, to +0.55 (20 % removed): this much the explanation adds." in said[0.1]
    inside = words.trajectories(pd.DataFrame([gap("gradient", 0.0, start=0.01)]))["none"]
    assert "inside the null band" in inside


def test_the_grid_says_under_which_explainers_the_gap_grows() -> None:
    rows = [gap("gradient", 0.17, True), gap("shap", 0.08, True), gap("lime", 0.02), gap("vargrad", -0.03)]
    said = words.trajectory_grid(pd.DataFrame([*rows, gap("gradient", 0.01, model="tier_full", start=0.06)]))
    assert "+0.45" in said["none"]
    assert "the same under every explainer and no explanation's doing" in said["none"]
    assert "under 2 of 4 explainers: Gradient by 0.17, to +0.62 (20 % removed), SHAP by 0.08" in said["none"]
    assert "under none of 1 explainer (by 0.01 at the most, under Gradient)" in said["tier_full"]
    never = words.trajectory_grid(pd.DataFrame([gap("gradient", -0.14), gap("lime", 0.004)]))["none"]
    assert "under none of 2 explainers (the most on the way: +0.45, 20 % removed)." in never


def test_both_views_of_the_trajectories_follow_one_rule() -> None:
    """The criterion that the grid applies decides the single explainer's sentence, too."""
    for growth, grown in ((0.1, True), (0.02, False), (-0.1, False)):
        frame = pd.DataFrame([gap("gradient", growth, grown)])
        one, grid = words.trajectories(frame)["none"], words.trajectory_grid(frame)["none"]
        assert ("this much the explanation adds" in one) == ("under 1 of 1 explainer" in grid) == grown
        assert one.split(",")[:3] == grid.split(",")[:3]


def test_curves_that_begin_late_say_so() -> None:
    frame = pd.DataFrame([gap("gradient", float("nan"))])
    for said in (words.trajectories(frame), words.trajectory_grid(frame)):
        assert "cannot be told" in said["none"]


def effects_table(effects: list[float], p: float = 0.001) -> pd.DataFrame:
    return pd.DataFrame({
        "removed": [0.1 * (i + 1) for i in range(len(effects))], "members": 2.0, "nonmembers": 1.0, "d": effects,
        "t_p": p, "n_members": 10,
    })  # fmt: skip


def test_divergence_names_the_largest_effect_and_its_doubt() -> None:
    said = words.divergence({"none": effects_table([0.1, -0.5])})["none"]
    assert "20 %" in said
    assert "less on members" in said
    assert "not significant" in words.divergence({"none": effects_table([0.1], p=0.5)})["none"]
    none = effects_table([float("nan")])
    assert "no test" in words.divergence({"none": none})["none"]


def test_an_inversion_is_named_only_when_both_signs_are_significant() -> None:
    assert "TIER Full" in str(words.inversions({"tier_full": effects_table([-0.5, 0.5])}))
    assert words.inversions({"tier_full": effects_table([-0.5, 0.5], p=0.4)}) is None
    assert words.inversions({"tier_full": effects_table([0.5, 0.5])}) is None


def test_the_papers_inversion_is_counted_from_its_tables() -> None:
    said = words.paper(tables.paper_divergence("none"), tables.paper_divergence("tier_full"))
    assert "|t| = 24.1" in said
    assert "At 3 of its 5 levels" in said


def matched(advantages: list[float | None], clear: bool | None = True) -> pd.DataFrame:
    rivals = [0 if value is None else 2 for value in advantages]
    return pd.DataFrame({"advantage": advantages, "clear": clear, "rivals": rivals, "counted": True})


def test_the_leak_sentence_counts_wins_and_losses() -> None:
    said = words.leak(matched([0.1, -0.1, -0.2, None]), 12)
    assert said.startswith("3 of 4 TIER settings")
    assert "1 leak less" in said
    assert "1 of them clearly" in said
    assert "2 leak clearly more, 0 do not differ clearly" in said
    assert "3 do not differ clearly" in words.leak(matched([0.1, -0.1, -0.2], clear=False), 12)
    lost = words.leak(matched([-0.1, -0.2]), 12)
    assert "No TIER setting here beats" in lost
    assert "nothing can be compared" in words.leak(matched([None]), 3)
    assert "0 of them clearly" in words.leak(matched([0.1], clear=None), 3)


def test_settings_with_one_seed_are_not_counted_among_wins() -> None:
    both = pd.concat([matched([0.1]), matched([0.2, 0.3], clear=None).assign(counted=False)])
    said = words.leak(both, 12)
    assert said.startswith("1 of 1 TIER setting") and "1 leak less" in said
    assert said.endswith("2 more with one seed are not counted: the best of many such is the luckiest.")
    assert "No TIER setting has several seeds. 2 more" in words.leak(both[~both["counted"]], 12)
    assert words.seeds({3: 13, 1: 93}) == "3 (of 13 settings), 1 (of 93)"
    assert words.seeds({1: 4}) == "1"


def runs(pairs: list[tuple[str, float, float]]) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=["model", "audit", "gap"])


def test_the_gap_attack_is_named_where_it_beats_the_audit() -> None:
    said = str(words.gap(runs([("none", 0.8, 0.7), ("tier_full", 0.52, 0.55), ("tier_full", 0.54, 0.55)])))
    assert said.startswith("In 2 of 3 runs (TIER Full) the gap attack")
    assert "by up to 0.030" in said
    assert words.gap(runs([("none", 0.8, 0.7)])) is None
    assert words.gap(runs([("none", float("nan"), 0.7)])) is None


def test_the_frontier_is_counted_by_who_holds_it() -> None:
    held = pd.DataFrame({"model": ["tier_full", "none", "none", "augmentation"], "stopped": [False, True, True, False]})
    said = words.frontier(held.assign(seeds=3))
    assert "2 checkpoints of early stopping, 1 TIER setting and 1 finished setting without TIER." in said
    assert words.frontier(held.assign(seeds=1)).endswith("without TIER, one seed each.")
    assert words.frontier(held.head(0)) == ""


def test_the_tilt_of_the_comparison_is_taken_from_the_intervals() -> None:
    assert "here 0.020" in words.fairness(pd.DataFrame({"low": [0.5, 0.6], "high": [0.54, 0.64]}))
    assert "here" not in words.fairness(pd.DataFrame({"low": [], "high": []}, dtype=float))


def test_maps_that_rank_nothing_are_counted_by_model() -> None:
    said = str(words.flat_maps({"none": (6, 2000), "tier_full": (0, 2000)}))
    assert "6 of 2,000 images (Undefended)" in said
    assert "TIER" not in said
    assert words.flat_maps({"none": (0, 2000)}) is None


def test_every_glossary_entry_is_a_sentence() -> None:
    for term, text in words.GLOSSARY.items():
        flat = words.flat(text)
        assert flat.endswith("."), term
        assert "  " not in flat, term


def test_a_share_is_counted_out_of_a_hundred() -> None:
    assert words.of_hundred(0.874) == "87 of 100"
    assert words.percent(0.3) == "30 %"


# ---- one image


@pytest.mark.parametrize(
    "score, said",
    [
        (2.0, "**member** (it says 88 %"), (-2.0, "**not a member** (it says 88 %"), (0.1, "cannot decide"),
        (9.0, "over 99 %"), (-1e9, "over 99 %"), (float("nan"), "no score"), (float("inf"), "no score"),
    ],
)  # fmt: skip
def test_the_attacks_belief_is_said_with_what_it_claims(score: float, said: str) -> None:
    assert said in words.belief(score, {"members": 0.25, "nonmembers": 0.5})


def test_a_belief_says_where_the_score_stands() -> None:
    assert words.belief(1.0, {"members": 0.25, "nonmembers": 0.75}).endswith(
        "higher than that of 25 % of the members and of 75 % of the non-members."
    )
    assert words.belief(1.0, {"members": 0.25, "nonmembers": float("nan")}).endswith("25 % of the members.")


def test_what_the_attack_claims_is_not_called_a_chance() -> None:
    said = words.belief(0.9, {"members": 0.25, "nonmembers": 0.75}, (108, 200))
    assert "it says 71 %" in said
    assert "Of the 200 images scored most like it, 108 are members (54 %)." in said
    assert "chance" not in said
    assert "scored most like it" not in words.belief(0.9, {})


@pytest.mark.parametrize("score, verdict", [(2.0, True), (-2.0, False), (0.19, None), (-0.19, None), (0.21, True)])
def test_a_score_near_a_half_decides_nothing(score: float, verdict: bool | None) -> None:
    assert words.decided(score) is verdict
    assert ("cannot decide" in words.belief(score, {})) == (verdict is None)


@pytest.mark.parametrize("told, dash", [(None, "dotted until"), (True, "solid, since"), (False, "dashed, since")])
def test_the_line_is_described_as_it_is_drawn(told: bool | None, dash: str) -> None:
    assert words.dash(told, True).startswith(dash)
    assert words.dash(told, False) == "dotted, since it is an upload"


def test_fold_classifiers_are_not_said_to_be_blind_to_what_the_data_holds() -> None:
    assert "none of which has seen the image" in words.scored_by(False, "none")
    for twin in ("training", "other"):
        assert "may have seen the image" in words.scored_by(False, twin)
    assert words.scored_by(True, None).endswith("did not see it")


def test_the_rules_of_the_contest_say_what_counts() -> None:
    said = words.contest_rules("LIME", 2)
    for part in ("before their membership was revealed", "Hardest", "LIME curves", "half right", "close or reload"):
        assert part in said
    assert said.endswith("Not counted so far: 2 guesses.")
    assert "so far" not in words.contest_rules("LIME", 0)
    assert "The attack on Undefended: 1.5 of 3." in words.contest(1, 3, {"none": (1.5, 3)})


def test_the_nearest_image_does_not_tell_membership() -> None:
    hidden = words.nearest(0.1, "stop", True, False, None)
    assert hidden == words.nearest(0.1, "stop", True, False, False)
    assert "other" not in hidden.replace("another", "")
    assert "nearest other training image" in words.nearest(0.1, "stop", True, False, True)
    assert "another frame of the same track" in words.nearest(0.1, "stop", True, True, None)
    assert "exactly these pixels" in words.nearest(0.0, "stop", None, False, None)


def test_the_contest_counts_reader_and_attacks() -> None:
    text = words.contest(3, 4, {"none": (4, 4), "tier_full": (0, 0)})
    assert text == "You: 3 of 4 right. A coin would expect 2. The attack on Undefended: 4 of 4."
    assert words.contest(0, 0, {}) == "No image guessed yet."


def test_a_prediction_says_when_it_is_wrong() -> None:
    assert words.prediction("stop", 0.9, False) == "Says **stop** with confidence 0.90, which is **wrong**."
    assert words.prediction("stop", 0.9, None) == "Says **stop** with confidence 0.90."
    assert words.prediction("stop", float("nan"), True) == "Says **stop**, which is right."
    assert words.top_classes([0.1, 0.7, 0.2], ["a", "b"], 2) == "b 70 %, class 2 20 %"


def choices(rows: list[tuple[str, float, bool | None]]) -> pd.DataFrame:
    """A table as from `tables.at_accuracy`."""
    made = pd.DataFrame(rows, columns=["defense", "leak", "clear"]).astype({"clear": object})
    tier = made.loc[made["defense"] == "tier_full", "leak"]
    change = made["leak"] - (tier.iloc[0] if len(tier) else float("nan"))
    made = made.assign(setting_text="", seeds=3, counted=True, borderline=False)
    return made.assign(difference=change, difference_low=change - 0.03, difference_high=change + 0.03)


def test_the_sentence_at_equal_accuracy_follows_the_table() -> None:
    said = words.at_accuracy(choices([("relaxloss", 0.52, False), ("tier_full", 0.54, None)]), 0.51)
    assert "RelaxLoss leaks least: 0.52 against 0.54 with TIER Full, not clearly less" in said
    assert "(difference -0.02, -0.05 to +0.01)" in said
    said = words.at_accuracy(choices([("relaxloss", 0.45, True), ("tier_full", 0.54, None), ("none", 0.9, True)]), 0.51)
    assert "clearly less" in said and "not clearly less" not in said
    won = words.at_accuracy(choices([("tier_full", 0.54, None), ("augmentation_stopped", 0.55, False)]), 0.51)
    assert "TIER Full leaks least (0.54), clearly less than 0 of the other 1" in won
    assert "next is Augmentation, stopped early (0.55)" in won
    lost = words.at_accuracy(choices([("none", 0.9, None)]), 0.6)
    assert "no setting of TIER Full that counts is as accurate" in lost
    assert "No stored run" in words.at_accuracy(choices([]), 0.99)


def test_one_seed_leaks_least_in_no_sentence() -> None:
    table = choices([("tier_full", 0.54, None), ("relaxloss", 0.60, True), ("distillation", 0.40, None)])
    table = table.assign(counted=[True, True, False], seeds=[3, 3, 1], borderline=[True, False, False])
    said = words.at_accuracy(table, 0.51)
    assert "Of 2 defenses" in said and "TIER Full leaks least (0.54)" in said
    assert "Not counted, as they rest on one seed: Distillation (0.40)." in said
    assert said.endswith("By the interval of its accuracy TIER Full may be less accurate than that.")
    said = words.at_accuracy(table[~table["counted"]], 0.51)
    assert said.startswith("No setting with several seeds is as good") and "leaks least" not in said
    alone = table.assign(counted=True, seeds=1, clear=None, difference_low=float("nan"))
    said = words.at_accuracy(alone, 0.51)
    assert "no difference can be called clear" in said and "nan" not in said


def test_a_guarantee_is_told_with_its_delta() -> None:
    assert words.guarantee({"epsilon": 1.5, "delta": 1e-5}) == "Guarantees epsilon 1.5 at delta 1e-05."
    said = str(words.guarantee({"epsilon": 2861.2, "delta": 1e-5}))
    assert said.startswith("Guarantees epsilon 2,861 at delta 1e-05, which in practice promises nothing")
    assert words.guarantee({"epsilon": float("nan"), "delta": 1e-5}) == "Without noise nothing is guaranteed."
    assert words.guarantee({"epsilon": float("nan"), "delta": float("nan")}) is None


def test_the_best_attacks_are_ranked_and_who_beats_tier_is_named() -> None:
    rows = [("relaxloss", 0.60, 0.55, "rmia"), ("tier_full", 0.65, 0.50, "agp"), ("none", 0.9, 0.6, "loss")]
    points = pd.DataFrame(rows, columns=["model", "leak", "test_accuracy", "by"])
    said = words.best_attack(points, "auc")
    assert "RelaxLoss (0.60, RMIA) leaks least and Undefended (0.90, Loss) most" in said
    assert "number 2 of 3; RelaxLoss leaks less and is at least as accurate" in said
    assert "number 2 of 3." in words.best_attack(points.assign(test_accuracy=[0.4, 0.5, 0.6]), "auc")
    assert "No attack" in words.best_attack(points.head(0), "auc")


def test_training_time_and_lambda_are_told_from_the_numbers() -> None:
    rows = pd.DataFrame({"model": ["none", "augmentation", "tier_full", "dpsgd_tuned"], "value": [1, 1.1, 4.8, 9.0]})
    said = words.overhead(rows)
    assert "DP-SGD, tuned costs most, 9 times" in said
    assert "TIER Full costs 4.8 times" in said
    assert "1 of 3 defenses" in said
    events = pd.DataFrame({"lambda": [0, 0, 7, 7], "epoch": [1, 2, 1, 2], "train_accuracy": [0.5, 1.0, 0.5, 0.7],
                           "test_accuracy": [0.4, 0.6, 0.4, 0.5]})  # fmt: skip
    said = words.strengths(events, 500)
    assert "At lambda 0 the model ends right for 60 of 100 new images and 100 of 100 training images" in said
    assert "at lambda 7 for 50 of 100 and 70 of 100. Most accurate on new images in this one run is lambda 0" in said
    assert said.endswith("; no other lies within the interval of its 500 images.")
    assert words.strengths(events, 20).endswith("; within the interval of its 20 images: lambda 7 too.")  # 0.39 to 0.78


def test_what_each_defense_does_is_true_of_its_settings() -> None:
    assert "SELENA" in words.DEFENSES["distillation"] and "With one part" in words.DEFENSES["distillation"]
    assert "most of them never saw" not in words.DEFENSES["ensemble_partition"]
    assert words.caveat("none", "one_cycle") is None
    assert "cut off on the way" in str(words.caveat("early_stopping", "one_cycle"))
    assert words.caveat("early_stopping", "constant") is None  # then there is no cycle to cut off
    for name in ("dpsgd_eps100", "dpsgd_tuned"):
        for part in ("seed", "GroupNorm", "same images"):
            assert part in str(words.caveat(name, "one_cycle"))
    assert "fewer steps" in str(words.caveat("ensemble_partition", "one_cycle"))


def test_the_chosen_point_is_held_against_its_best_rival() -> None:
    row = {"rivals": 3, "advantage": -0.02, "clear": False, "leak": 0.56, "test_accuracy": 0.51, "best": "Augmentation",
           "best_leak": 0.54, "best_accuracy": 0.6, "seeds": 3}  # fmt: skip
    said = words.standing_of(pd.DataFrame([row]), pd.DataFrame())
    assert "leaks more than the least leaking of 3 rivals" in said
    assert "mean of 3 seeds" in said and "chance could make the difference" in said
    said = words.standing_of(pd.DataFrame([row | {"seeds": 1, "clear": None}]), pd.DataFrame())
    assert "it rests on one seed, so nothing is shown" in said
    said = words.standing_of(pd.DataFrame([row | {"advantage": 0.1, "clear": True}]), pd.DataFrame())
    assert "leaks clearly less than" in said
    assert "cannot be compared" in words.standing_of(pd.DataFrame(), pd.DataFrame())
