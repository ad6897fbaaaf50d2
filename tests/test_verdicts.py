"""Fixtures are run: the bad ones show their defect, fixed and good ones do not.

A good fixture has no finding; its rule's question is put to its loop nevertheless. What cannot be answered yet stands
in a table with the reason, and has to leave it when it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers import ROOT, markers

from accumlint import check
from accumlint.check import Examined, Shared
from accumlint.common.place import Place
from accumlint.config import Settings
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import FEWER, UPDATES, Overrides
from accumlint.confirming.pipeline import confirm
from accumlint.confirming.plan import Plan, planned, replanned
from accumlint.confirming.result import Confirmation, Regime, Verdict
from accumlint.diagnostics.results.report import Mark, Report
from accumlint.files.inputs.discovery import Target
from accumlint.registry import packs
from accumlint.rule import Applicability, Rule, Symptom

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FIXTURES = ROOT / "fixtures"
EXPECTED = {"bad": Verdict.CONFIRMED, "fixed": Verdict.REFUTED, "good": Verdict.REFUTED}
# A difference that rounding makes in float64 is far below.
EQUAL = 1e-9

OTHER_DATA = "the question is put with data that this loop never sees"
ON_PURPOSE = "it does on purpose what the rule asks about"
UNSEEN = "what makes it right is done where the run does not look"
NO_FAKE = "nothing can stand in for what it computes its loss from"
SHORT = "that a window which lacks a micro-batch is divided as if it were whole may be intended"
UNCALLED = "no loop of its file calls its step"
# Fixtures that get another verdict than they should.
EXCEPTIONS = {
    "acc101/bad_loss_of_the_base_trainer": "weights that it keeps from before are not known",
    "acc101/good_loss_of_the_base_trainer": "weights that it keeps from before are not known",
    "acc101/bad_sequence_to_sequence_trainer": "there is no loop to run but the Trainer's",
    "acc101/good_sequence_to_sequence_trainer": "there is no loop to run but the Trainer's",
    "acc408/bad_forward_fails_inside_a_window": SHORT,
    "acc408/good_training_step_out_of_memory": SHORT,
    "acc408/bad_batch_of_none_in_a_window": "no stub of a loader gives None",
    "acc408/good_batch_of_none_is_replaced": "no stub of a loader gives None",
    "acc103/good_accelerator_told_one": "the fake of its accelerator is told the size of the window",
    "acc103/bad_deepspeed_settings_in_the_file": "what divides twice may be a weight of its loss",
    "acc104/bad_literal_under_amp": "what divides may be a weight of its loss",
    "acc102/bad_ranks_say_whether_data_is_left.fixed": "the fake of its size leaves rows of a batch out",
    "acc302/good_window_ends_with_its_list": "no stub of a loader gives lists of batches",
    "acc204/good_updated_by_the_caller": "its optimizer is one of a table that no batch reaches",
    "acc404/good_list_of_another_function": "a total that a mean over the whole run is taken of grows as well",
    "acc503/good_number_from_the_caller": "it is called with numbers that begin at nothing",
    "acc507/good_rows_of_all_gpus_and_steps": "how long a schedule is meant to be is not measured",
    "acc102/good_loss_that_the_model_keeps": "the stub of its model sets no attribute in its forward",
    "acc102/bad_loss_that_calls_the_network": "its loss has no gradient at the fake's outputs",
    "acc102/bad_loss_that_calls_the_network.fixed": "its loss has no gradient at the fake's outputs",
    "acc405/bad_value_beside_the_loss": "the stub of its model gives a table beside the loss",
    "acc303/bad_comment_names_fsdp": "the trainer that wraps its model is not there",
    "acc101/good_blocks_through_a_collator": OTHER_DATA,
    "acc101/good_batch_by_keywords": OTHER_DATA,
    "acc102/good_divided_by_a_helper": NO_FAKE,
    "acc101/bad_boxes_of_the_rows": NO_FAKE,
    "acc101/bad_weighted_by_a_setting": NO_FAKE,
    "acc101/good_fixed_share_of_masked_patches": NO_FAKE,
    "acc102/bad_boundary_of_an_unread_function": "the function that tells when to step is not there",
    "acc102/bad_base_in_another_file/base": "a subclass in another file makes its network and loss",
    "acc102/bad_loop_that_is_not_read/parts": UNCALLED,
    "acc101/bad_dice_beside_the_loss": NO_FAKE,
    "acc301/bad_base_of_a_strategy/base": "a subclass in another file makes its optimizer",
    "acc301/good_strategy_that_waits/base": "a subclass in another file makes its optimizer",
    "acc101/good_label_of_each_candidate": OTHER_DATA,
    "acc101/good_rows_of_an_unknown_loss": NO_FAKE,
    "acc102/good_divided_by_choice_of_reduction": "its settings' fake asks for no mean",
    "acc108/good_rows_by_their_own_counts": NO_FAKE,
    "acc305/good_parameter_of_the_models_name": "the model that its caller gives is not the wrapped one",
    "acc101/good_labels_padded_in_a_loop": OTHER_DATA,
    "acc101/good_picked_by_the_opposite_mask": NO_FAKE,
    "acc101/good_classes_given_to_a_model": OTHER_DATA,
    "acc101/good_columns_picked": "nothing stands in for the columns",
    "acc202/good_held_to_one_on_one_side": "a Trainer's own loop is not run",
    "acc401/good_optimizer_goes_backward": "the library that goes backward is not there",
    "acc402/good_copy_for_each_microbatch": NO_FAKE,
    "acc505/good_held_back_by_the_batch": NO_FAKE,
    "acc504/good_samples_against_batch_size": "its sizes' fakes make windows of one micro-batch",
    "acc101/good_whole_batch_of_blocks": OTHER_DATA,
    "acc303/good_fsdp_backward_under_no_sync": "its sizes' fakes make windows of one micro-batch",
    "acc101/good_as_many_picked_in_each": "as many targets are picked every time, so that no count can vary",
    "acc101/good_settings_of_an_engine_are_read": OTHER_DATA,
    "acc301/good_teacher_wrapped": "what is trained is wrapped by nobody, so that nothing is reduced",
    "acc408/good_out_of_memory_begins_again": ON_PURPOSE,
    "acc501/good_rows_of_a_table": NO_FAKE,
    "acc101/good_rows_of_a_policy": NO_FAKE,
    "acc101/good_lightning_automatic": OTHER_DATA,
    "acc101/good_trainer_divides": "its loss is no plain sum over targets, so the right weight of each is unknown",
    "acc102/bad_training_step_of_a_trainer": "the file that its trainer is based on is not there",
    "acc501/bad_counted_passes": "its epochs stand in for fewer micro-batches than a window has",
    "acc501/bad_loaders_of_a_trainer": NO_FAKE,
    "acc501/bad_loaders_of_a_trainer.fixed": NO_FAKE,
    "acc501/good_counted_whole_windows": "its epochs stand in for fewer micro-batches than a window has",
    "acc102/bad_steps_left_at_one_in_a_table": "its windows are of one micro-batch, whatever is asked for",
    "acc102/bad_steps_left_at_one_in_a_table.fixed": "its windows are of one micro-batch, whatever is asked for",
    "acc102/bad_steps_of_another_file/main": "its windows are of one micro-batch, whatever is asked for",
    "acc408/good_out_of_memory_unless_distributed": ON_PURPOSE,
    "acc102/good_share_of_the_window": NO_FAKE,
    "acc102/good_weighed_by_a_schedule": NO_FAKE,
    "acc208/good_optimizer_class_that_clips": UNSEEN,
    "acc401/good_gradients_in_contexts": "distributed autograd is not set up",
    "acc401/good_told_who_clears": "the library of its optimizer is not there",
    "acc403/good_applied_one_batch_later": ON_PURPOSE,
    "acc403/good_losses_of_a_subclass/base": UNCALLED,
    "acc403/good_losses_of_a_subclass/main": "its loss is left to a subclass that is not there",
    "acc405/good_arrays_of_numpy": "its total is a number, which no run watches",
    "acc405/good_norms_and_operations": "its totals are numbers, for which no control can fail",
    "acc405/good_number_by_a_helper": "its total is a number, for which no control can fail",
    "acc405/good_part_of_a_result": NO_FAKE,
    "acc405/good_shifted_by_a_setting": "nothing in it is a total that a run could watch",
    "acc405/good_solver_of_one_call": NO_FAKE,
    "acc407/good_agent_with_two_optimizers": NO_FAKE,
    "acc407/good_graph_of_a_given_loss": ON_PURPOSE,
    "acc503/good_policy_behind_the_model": "nothing in its loop asks for a window",
    "acc505/good_from_an_epoch_on": NO_FAKE,
    "acc204/good_scaler_handed_on": UNSEEN,
    "acc405/good_count_has_no_graph": "what a fake hands out beside the loss has a graph",
    "acc405/good_total_of_one_microbatch": NO_FAKE,
    "acc504/good_caller_tells_when": UNCALLED,
    "acc506/good_as_often_as_microbatches": ON_PURPOSE,
    "acc506/good_epochs_of_microbatches": "the fake of its epochs' length ends them inside a window",
    "acc506/good_factor_by_a_function": ON_PURPOSE,
    "acc506/good_made_again_with_the_length": ON_PURPOSE,
    "acc506/good_length_among_settings": UNSEEN,
    "acc506/good_position_given": "its step count is a parameter that nobody gives",
    "acc102/good_adds_up_over_ranks": NO_FAKE,
    "acc102/good_contrast_over_the_window": NO_FAKE,
    "acc102/good_rate_of_the_generator": UNSEEN,
    "acc408/good_same_question_twice": UNSEEN,
    "acc506/good_stretched_by_a_helper": UNSEEN,
    "acc506/good_stretched_by_a_setting": UNSEEN,
    "acc101/good_ignore_index_never_met": OTHER_DATA,
    "acc101/good_model_told_by_its_annotation/main": OTHER_DATA,
    "acc101/good_packed_blocks": OTHER_DATA,
    "acc101/good_rows_of_one_size": NO_FAKE,
    "acc102/good_sum_on_purpose_in_another_file/main": NO_FAKE,
    "acc105/good_fixed_batch_size": "a sum over the elements of a row, which the large batch takes the mean over",
    "acc106/good_count_from_elsewhere": NO_FAKE,
    "acc106/good_one_process": "its question is about several ranks",
    "acc106/good_rows_of_the_window": OTHER_DATA,
    "acc107/good_accelerate_samples_of_variable_size": "Accelerate ends the last window early when it is read ahead",
    "acc107/good_gathered_features": "gloo cannot go backward through a gather",
    "acc108/good_full_rows": OTHER_DATA,
    "acc108/good_sum_per_sequence": ON_PURPOSE,
    "acc108/good_weighted_region": NO_FAKE,
    "acc301/good_context_of_the_settings": UNSEEN,
    "acc301/good_fsdp_without_no_sync": ON_PURPOSE,
    "acc301/good_library_switches_reduction": UNSEEN,
    "acc301/good_one_process": "its question is about several ranks",
    "acc306/good_one_process": "its question is about several ranks",
    "acc306/good_parameters_averaged": ON_PURPOSE,
    "acc306/good_wrapped_elsewhere": UNSEEN,
    "acc308/good_nothing_applied": ON_PURPOSE,
    "acc308/good_sum_of_a_sum": ON_PURPOSE,
    "acc309/good_value_from_elsewhere": UNSEEN,
    "acc201/good_unscaled_on_one_line": NO_FAKE,
    "acc202/good_two_networks": NO_FAKE,
    "acc204/good_one_update_for_two_steps": "nothing says that `steps` are the micro-batches of a window",
    "acc208/good_only_measured": "nothing is clipped, so nothing is clipped in the wrong place",
    "acc401/good_cleared_by_the_caller": UNSEEN,
    "acc401/good_found_by_their_names": "its optimizers are added by nobody here",
    "acc401/good_helper_unseen": UNSEEN,
    "acc402/good_engines_without_a_window": NO_FAKE,
    "acc402/good_gathered_in_buffers": NO_FAKE,
    "acc402/good_two_optimizers_of_unknown_networks": NO_FAKE,
    "acc404/good_mean_over_the_run": ON_PURPOSE,
    "acc405/good_begun_anew_for_each_window": NO_FAKE,
    "acc405/good_sum_within_one_batch": NO_FAKE,
    "acc407/good_returns_of_an_episode": NO_FAKE,
    "acc407/good_retained_for_another_path": ON_PURPOSE,
    "acc408/good_flag_leaves_the_clearing": ON_PURPOSE,
    "acc408/good_whole_window_given_up": ON_PURPOSE,
    "acc408/good_window_before_the_rest": ON_PURPOSE,
    "acc501/good_endless_stream": "no epoch ends",
    "acc501/good_single_pass": ON_PURPOSE,
    "acc501/good_window_is_a_minimum": NO_FAKE,
    "acc503/good_two_networks": "its windows are of one micro-batch, whatever is asked for",
    "acc504/good_weight_of_a_loss": "nothing is accumulated, whatever is asked for",
    "acc505/good_gradients_looked_at": ON_PURPOSE,
    "acc505/good_handed_to_a_helper": UNSEEN,
    "acc505/good_rarely_reached": "its window is longer than any run",
    "acc505/good_steps_in_another_method": UNSEEN,
    "acc506/good_counted_in_microbatches": ON_PURPOSE,
    "acc506/good_per_epoch": "the scheduler does not move in the epochs that are run",
    "acc508/good_average_of_losses": "nothing averages the weights",
    "acc508/good_counts_by_itself": UNSEEN,
    "acc601/good_divides_by_steps": NO_FAKE,
    "acc601/good_division_left_to_trainer": NO_FAKE,
    "acc606/good_two_optimizers": "which optimizer a micro-batch is for is asked of Lightning",
    "acc603/good_accelerator_made_elsewhere": UNSEEN,
    "acc603/good_plain_accelerator": ON_PURPOSE,
    "acc606/good_weighted_terms": NO_FAKE,
    "acc101/good_each_row_by_its_own_count": NO_FAKE,
    "acc104/good_mean_of_two_losses": "the large batch is taken for the sum of its two losses",
    "acc303/good_recorded_backward": NO_FAKE,
    "acc401/good_caller_works_out_the_loss": UNSEEN,
    "acc401/good_network_under_two_names": "a network that goes by two names gets two fakes",
    "acc405/good_sum_over_parts_of_a_result": NO_FAKE,
    "acc501/good_own_loss_after_the_step": NO_FAKE,
    "acc503/good_window_that_grows": ON_PURPOSE,
    "acc505/good_steps_with_its_rate": NO_FAKE,
    "acc508/good_average_of_scores": "nothing averages the weights",
    "acc601/good_pairs_without_labels": OTHER_DATA,
    "acc602/good_backends_of_a_trainers_fork": NO_FAKE,
    "acc603/good_held_to_one": "its windows are of one micro-batch, whatever is asked for",
    "acc603/good_two_accelerators": "two networks that train each other are compared with a window of both",
    "acc202/good_clipped_by_the_engine": "its bound stands in the engine's configuration",
    "acc603/good_two_objectives": ON_PURPOSE,
    "acc206/good_step_is_given_the_scaler": UNSEEN,
    "acc303/good_fsdp_wrapped_backward_inside": "FSDP reduces on an accelerator only",
    "acc501/good_cycle_of_a_helper": "no epoch ends",
    "acc501/good_list_that_stays_empty": "no epoch ends",
    "acc506/good_limit_of_microbatches": ON_PURPOSE,
    "acc506/good_made_where_it_is_missing": ON_PURPOSE,
    "acc102/good_parts_divided_as_a_whole": NO_FAKE,
    "acc204/good_scalers_of_several_heads": NO_FAKE,
    "acc401/good_optimizer_in_a_shell": NO_FAKE,
    "acc403/good_backward_left_out": NO_FAKE,
    "acc204/good_scaler_given_to_the_optimizer": NO_FAKE,
    "acc307/good_count_reduced_with_it": "the model that its caller gives is not the wrapped one",
    "acc405/good_sum_over_an_unrolled_model": NO_FAKE,
    "acc407/good_gradients_released_late": NO_FAKE,
    "acc407/good_what_the_model_keeps": NO_FAKE,
    "acc506/good_length_under_another_name": UNSEEN,
    "acc506/good_rows_by_batch_size": ON_PURPOSE,
    "acc506/good_rows_of_all_ranks": ON_PURPOSE,
    "acc401/good_all_made_anew": "all that it makes anew is one fake",
    "acc503/good_tasks_that_begin_later": "nothing can stand in for where its tasks begin",
    "acc601/good_retriever": OTHER_DATA,
    "acc407/bad_kept_behind_the_last.fixed": "two losses of one graph keep it, as nothing else could",
    "acc101/good_counted_hits": OTHER_DATA,
    "acc601/good_training_step_without_count": "the Trainer of its time left the division to Accelerate",
    "acc508/good_average_of_measurements": "nothing averages the weights",
    "acc603/good_parts_of_one_batch": NO_FAKE,
    "acc101/bad_perturbed_embeddings": NO_FAKE,
    "acc101/bad_picked_distance_by_distance": NO_FAKE,
    "acc101/bad_weighted_by_its_chance": NO_FAKE,
    "acc101/good_gradients_divided_by_tokens": NO_FAKE,
    "acc102/bad_iterations_of_each_task": NO_FAKE,
    "acc102/bad_iterations_of_each_task.fixed": NO_FAKE,
    "acc102/bad_loss_of_a_subclass": NO_FAKE,
    "acc102/bad_loss_of_a_subclass.fixed": NO_FAKE,
    "acc102/bad_loss_of_outputs": NO_FAKE,
    "acc102/bad_loss_of_outputs.fixed": NO_FAKE,
    "acc102/bad_reduced_by_einops": NO_FAKE,
    "acc102/bad_reduced_by_einops.fixed": NO_FAKE,
    "acc102/bad_settings_handed_on_whole": NO_FAKE,
    "acc102/bad_settings_handed_on_whole.fixed": NO_FAKE,
    "acc102/bad_told_as_a_number": NO_FAKE,
    "acc102/bad_told_as_a_number.fixed": NO_FAKE,
    "acc102/bad_two_names_of_the_settings": "its caller counts the micro-batches, and is not run",
    "acc102/good_loss_of_each_target": NO_FAKE,
    "acc104/good_half_a_squared_error": NO_FAKE,
    "acc104/good_half_on_one_path": NO_FAKE,
    "acc105/good_gradients_divided_by_rows": NO_FAKE,
    "acc202/bad_diffusion_calls_the_model": "the library that clips is not there",
    "acc202/bad_diffusion_calls_the_model.fixed": "the library that clips is not there",
    "acc405/good_terms_of_one_loss": NO_FAKE,
    "acc501/bad_table_of_optimizers": NO_FAKE,
    "acc501/bad_trainer_by_its_type": NO_FAKE,
    "acc501/good_trainer_by_its_type": NO_FAKE,
    "acc504/good_count_comes_with_the_data": NO_FAKE,
    "acc505/good_told_to_hold_back": UNSEEN,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A question to a loop, under the name of its fixture; `kind` is "bad", "fixed" or "good"."""

    name: str
    kind: str
    plan: Plan
    safe: bool = False


def cases(rule: Rule, every: int = 1) -> Iterator[Case]:
    """The questions of one rule to its bad fixtures and its good ones, to as many of each as come `every` so often.

    The first of each kind gets the verdict that it should, and has a fixed text where any has.
    """
    paths = sorted((FIXTURES / rule.code.lower()).iterdir())
    paths.sort(key=lambda p: (name_of(p) in EXCEPTIONS, not p.with_suffix(".fixed.py").exists()))
    for kind in ("bad", "good"):
        named = [p for p in paths if p.name.startswith(f"{kind}_") and ".fixed" not in p.name]
        for path in named[::every]:
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                if file.suffix == ".py" and not file.name.endswith(".fixed.py"):
                    yield from _cases(file, kind, rule)


def name_of(path: Path) -> str:
    return path.relative_to(FIXTURES).with_suffix("").as_posix()


def _cases(file: Path, kind: str, rule: Rule) -> Iterator[Case]:
    name = name_of(file)
    target = Target(name, str(file), Settings(Path("/"), extend_select=(rule.code,)))
    text = file.read_text(encoding="utf-8")
    examined = _examined(text, target)
    if examined is None:
        # Nothing in it trains.
        return
    if kind == "good":
        yield Case(name, kind, replanned(_question(target, rule), examined, Overrides()))
        return
    lines = frozenset(line for line, code in markers(text) if code == rule.code)
    if not lines:
        return
    after = file.with_name(f"{file.stem}.fixed.py")
    for plan in planned(examined, lines, Overrides()):
        if plan.report.code != rule.code:
            continue
        yield Case(name, kind, plan)
        if after.exists():
            mended = _examined(after.read_text(encoding="utf-8"), target)
            assert mended is not None
            fixed = replanned(plan, mended, Overrides())
            safe = rule.fix is Applicability.SAFE or rule.code == "ACC101"
            yield Case(f"{name}.fixed", "fixed", replace(fixed, arm="fixed"), safe)


# Right loops whose loss weighs more or less on purpose, which a window of one micro-batch shows.
WEIGHED = {
    "acc102/good_quarter_weight", "acc102/good_times_the_columns", "acc406/good_reported_after_the_step",
}  # fmt: skip


# Data that only some questions ask for; a report shows them to all.
_ASKED_OF = {
    Regime.RAGGED: {Symptom.WEIGHTS},
    Regime.TRAILING: {
        Symptom.LEFT, Symptom.PARTIAL, Symptom.GRADIENT, Symptom.MISSED, Symptom.RAISES, Symptom.SPREAD,
    },
}  # fmt: skip


# What a loop is made right by, for controls.
_MENDS = {"mend", "average", "regular", "free", "drop", "mute", "even", "flush"}


def trimmed(case: Case) -> Plan:
    """A question's plan without the passes that the expected verdict does not rest on.

    A defect is confirmed when a loop made right does not show it; it is refuted when a broken one does.
    """
    plan = case.plan
    if plan.job is None:
        return plan
    passes = (
        spec
        for spec in plan.job.passes
        if plan.symptom in _ASKED_OF.get(Regime(spec.regime), {plan.symptom})
        and (not spec.sabotage or (spec.sabotage in _MENDS) == (case.kind == "bad"))
        # What its targets weigh on purpose shows alone.
        and (
            spec.steps > 1
            or case.kind == "bad"
            or (case.kind == "fixed" and plan.symptom is Symptom.SCALE)
            or case.name in WEIGHED
        )
    )
    return replace(plan, job=replace(plan.job, passes=tuple(passes)))


def shortened(case: Case) -> Plan:
    """The same with fewer updates and the controls that most defects need; what is shown in two updates is shown."""
    plan = trimmed(case)
    if plan.job is None:
        return plan
    fewer = 2 if case.kind == "bad" else FEWER
    passes = (
        replace(spec, updates=min(spec.updates, fewer))
        if spec.updates in (UPDATES, FEWER)
        else spec
        for spec in plan.job.passes
        if not spec.unscaled and (case.kind != "bad" or spec.sabotage in ("", "mend"))
    )
    return replace(plan, job=replace(plan.job, passes=tuple(passes)))


def _examined(text: str, target: Target) -> Examined | None:
    examined = check.examine(text.encode(), target, Shared())
    return examined if isinstance(examined, Examined) else None


def _question(target: Target, rule: Rule) -> Plan:
    """What a rule would ask, had it found anything."""
    mark = Mark(Place(1, 1, 1, 1), "")
    report = Report(target.shown, target.file, rule.code, rule.name, "", "", "", mark)
    return Plan(report, rule, rule.ranks, None)


def measured(hundreds: str, every: int = 1) -> list[Case]:
    """The questions of the rules whose codes begin so, as far as they are measured, to each of so many fixtures."""
    return [
        case
        for entry in packs.catalogue()
        if entry.code[3] in hundreds and not packs.rule(entry).unmeasured
        for case in cases(packs.rule(entry), every)
    ]


# Two tests of about the same length, so that both cores have something to do; each starts torchrun once for one rank
# and once for two. Each rule is asked about every eighth of its fixtures of each kind, and so about one bad, one fixed
# and one good one at least; about all where CI asks for it.
@pytest.mark.long
@pytest.mark.parametrize("hundreds", ["124", "3567"])
@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=pytest.mark.whole)], ids=["every eighth", "all"]
)
def test_fixtures_get_the_verdict_that_their_names_promise(hundreds: str, every: int) -> None:
    asked = [case for case in measured(hundreds, every) if case.name not in EXCEPTIONS]
    answers = answered(asked)
    assert wrong(asked, answers) == {}
    uneven = {
        case.name: error
        for case, answer in zip(asked, answers, strict=True)
        if case.safe and not (error := worst(answer)) <= EQUAL
    }
    assert uneven == {}


# Loops that cannot be run are tried in every way, which takes long.
@pytest.mark.excepted
@pytest.mark.parametrize("hundreds", ["124", "3567"])
def test_who_has_left_the_table_s_reason_behind_leaves_the_table(hundreds: str) -> None:
    asked = [case for case in measured(hundreds) if case.name in EXCEPTIONS]
    right = {case.name for case in asked} - wrong(asked, answered(asked)).keys()
    assert right == set()


@pytest.mark.gpu
@pytest.mark.long
def test_fixtures_get_the_same_verdict_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch can use no GPU")
    asked = [case for case in measured("12", 3) if case.name not in EXCEPTIONS]
    assert wrong(asked, answered(asked, Options(device="cuda"))) == {}


def answered(asked: list[Case], options: Options | None = None) -> list[Confirmation]:
    """The answers to cases: most need few updates and one control, the others are asked with all."""
    options = options or Options()
    answers = confirm([shortened(case) for case in asked], options, lambda _: None)
    open_ = wrong(asked, answers)
    # A fix is judged by what the text that it mends has shown.
    reports = {id(case.plan.report) for case in asked if case.name in open_}
    more = [number for number, case in enumerate(asked) if id(case.plan.report) in reports]
    whole = confirm([trimmed(asked[number]) for number in more], options, lambda _: None)
    for number, answer in zip(more, whole, strict=True):
        answers[number] = answer
    return answers


def wrong(asked: list[Case], answers: list[Confirmation]) -> dict[str, str]:
    """What was answered where another verdict is expected."""
    return {
        case.name: f"{answer.verdict.value}: {answer.reason}"
        for case, answer in zip(asked, answers, strict=True)
        if answer.verdict is not EXPECTED[case.kind]
    }


def worst(answer: Confirmation) -> float:
    """The largest relative error of an update, of one with differing numbers of targets where those were asked for."""
    whole = [one for one in answer.passes if one.regime in (Regime.EQUAL, Regime.RAGGED)]
    return max(update.error for one in whole for update in one.updates)


@pytest.mark.parametrize("rule", [r for r in packs.everything() if r.unmeasured], ids=type)
def test_what_no_run_measures_is_not_run(rule: Rule) -> None:
    plans = [case.plan for case in cases(rule, 3) if case.kind == "bad"]
    assert plans
    for answer in confirm(plans, Options(), lambda _: None):
        assert (answer.verdict, answer.reason) == (Verdict.UNDECIDED, rule.unmeasured)


def test_the_table_names_what_exists() -> None:
    assert all((FIXTURES / f"{name}.py").exists() for name in EXCEPTIONS)
