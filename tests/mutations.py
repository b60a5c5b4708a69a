"""Lines where a mistake would cost most, each with the one test that must fail when the line is gone.

    python -m tests.mutations             all of them (`make test-mutations`; every night in Actions)
    python -m tests.mutations WORDS       those whose symbol or test has one of the words in it

The repository is copied; in the copy one line is changed, and only its test runs. The line prints `red` if the test
fails, as it must. Whoever moves or rewrites such a line names its successor here: a line that is not found is an error,
by night and in tests/whole/test_mutations.py, which only looks.
"""

import argparse
import ast
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).parents[1]
TIMEOUT_S = 600
AT_ONCE = 2
"""Tests that run at a time, each in a copy of its own."""

Outcome = Literal["red", "GREEN", "NOT FOUND", "NO TEST", "HANGS"]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    symbol: str
    """`module:function`, `module:Class.method` or `module:CONSTANT`; or the path of a file that is not Python."""
    old: str
    """Text that the symbol's source has once."""
    new: str
    test: str
    """The id of one test, or of all cases of one."""

    @property
    def path(self) -> Path:
        """In the repository."""
        module, colon, _ = self.symbol.partition(":")
        return Path(f"{module.replace('.', '/')}.py" if colon else module)

    @property
    def name(self) -> str:
        """For the table: the symbol, and the line that is changed."""
        lines = [line.strip() for line in self.old.strip().splitlines()]
        return f"{self.symbol}  {lines[0]}{' ...' if len(lines) > 1 else ''}"


CLOCK = "tests/harness/measure/test_clock.py"
PROTOCOL = "tests/harness/measure/test_protocol.py"
CONTRACT = "tests/runners/test_device_contract.py"
OWNER = "tests/pipeline/report/test_owner.py"
CHILDREN = "tests/harness/job/test_children.py"

MUTATIONS = [
    # What the clock measures.
    Mutation(
        symbol="torch_runner.device:Device.wait",
        old="torch.cuda.synchronize()",
        new="pass",
        test=f"{CONTRACT}::test_timed_block_ends_only_after_the_device_was_waited_for",
    ),
    Mutation(
        symbol="jax_runner.device:Device.wait",
        old="jax.block_until_ready(outputs)",
        new="pass",
        test=f"{CONTRACT}::test_timed_block_ends_only_after_the_device_was_waited_for",
    ),
    Mutation(
        symbol="harness.measure.clock:_goes_on",
        old="elapsed_s >= protocol.min_time_s and ",
        new="",
        test=f"{CLOCK}::test_quiet_blocks_go_on_for_their_least_time",
    ),
    Mutation(
        symbol="harness.measure.clock:measure_dispatch",
        old="            times_s.append(perf_counter() - begun)\n            wait(outputs)\n",
        new="            wait(outputs)\n            times_s.append(perf_counter() - begun)\n",
        test=f"{CLOCK}::test_dispatch_time_is_that_of_the_host_alone",
    ),
    Mutation(
        symbol="torch_runner.device:Device.set_up",
        old="load_libraries(self.device)",
        new="pass",
        test=f"{CONTRACT}::test_libraries_are_loaded_while_the_device_is_set_up",
    ),
    Mutation(
        symbol="jax_runner.device:Device.set_up",
        old="start_libraries(precision)",
        new="pass",
        test=f"{CONTRACT}::test_libraries_are_loaded_while_the_device_is_set_up",
    ),
    Mutation(
        symbol="torch_runner.device:Device.begin_timing",
        old="torch.cuda.reset_peak_memory_stats()",
        new="pass",
        test=f"{CONTRACT}::test_torch_peak_memory_of_steps_is_reset_before_the_first_block_and_read_after_the_last",
    ),
    Mutation(
        symbol="harness.measure.protocol:Measuring._steady",
        old="after_warmup=self._device.begin_timing,",
        new="",
        test=f"{PROTOCOL}::test_the_order_of_a_measurement",
    ),
    Mutation(
        symbol="harness.measure.clock:time_block",
        old="wait(step())",
        new="step()",
        test=f"{CLOCK}::test_call_is_timed_until_its_outputs_are_ready_and_a_block_waits_once",
    ),
    Mutation(
        symbol="harness.measure.clock:compile_time_s",
        old=" - len(cold_call_times_s) * warm_call_s",
        new="",
        test=f"{CLOCK}::test_compile_time_by_hand",
    ),
    Mutation(
        symbol="harness.measure.clock:_measure_blocks",
        old="lead_ins_s += time_block(step, wait, lead_in_calls)",
        new="pass",
        test=f"{CLOCK}::test_a_lead_in_comes_before_each_block_in_turns_and_is_in_no_time",
    ),
    Mutation(
        symbol="harness.measure.clock:_no_garbage_collection",
        old="gc.disable()",
        new="pass",
        test=f"{CLOCK}::test_no_garbage_collection_while_measuring_and_then_as_before",
    ),
    Mutation(
        symbol="harness.measure.clock:_no_garbage_collection",
        old="gc.unfreeze()",
        new="pass",
        test=f"{CLOCK}::test_cyclic_objects_of_calls_do_not_pile_up",
    ),
    Mutation(
        symbol="harness.measure.clock:_measure_energy",
        old="    time_block(step, wait, calls)\n    start",
        new="    start",
        test=f"{CLOCK}::test_energy_by_hand",
    ),
    Mutation(
        symbol="harness.measure.clock:_lowest",
        old="return min(",
        new="return max(",
        test=f"{CLOCK}::test_the_lower_idle_power_counts",
    ),
    Mutation(
        symbol="harness.measure.clock:measure_steady",
        old="recompiles=compilations() - compiled_before",
        new="recompiles=0",
        test=f"{CLOCK}::test_recompilations_within_the_clock_are_counted_and_others_are_not",
    ),
    Mutation(
        symbol="harness.measure.protocol:Measuring._cold_calls",
        old="        program.place()\n        self._device.wait(program.state())\n",
        new="        program.place()\n",
        test=f"{PROTOCOL}::test_what_is_compiled_before_the_first_call_counts_and_what_is_placed_does_not",
    ),
    # What is computed: the same work, in the same precision, from the same numbers.
    Mutation(
        symbol="harness.measure.protocol:Measuring._without_control",
        old="checks = program.check()",
        new="checks = []",
        test=f"{PROTOCOL}::test_a_wrong_program_is_never_timed",
    ),
    Mutation(
        symbol="jax_runner.use_cases.train:make_train_step",
        old=", donate_argnums=0",
        new="",
        test="tests/runners/test_train.py::test_jax_step_overwrites_its_state_and_keeps_the_data",
    ),
    Mutation(
        symbol="jax_runner.use_cases.many_models:ManyModels.__init__",
        old="self.compute = jitted(step, session.mode, session.device, donate_argnums=0)",
        new="self.compute = jitted(step, session.mode, session.device)",
        test="tests/runners/test_many_models.py::test_jax_step_overwrites_all_models_and_keeps_the_batches",
    ),
    Mutation(
        symbol="torch_runner.device:choose_arithmetic",
        old="torch.backends.cudnn.allow_tf32 = tf32",
        new="pass",
        test="tests/runners/test_torch_device.py"
        "::test_inductors_convolutions_have_the_precision_too_and_default_sets_nothing",
    ),
    Mutation(
        symbol="jax_runner.device:Device._choose",
        old='MATMUL_PRECISION.get(precision, "highest")',
        new="MATMUL_PRECISION.get(precision)",
        test="tests/runners/test_jax_device.py::test_precision_is_that_of_what_is_computed",
    ),
    Mutation(
        symbol="harness.plan:Measurement.seed",
        old="self.protocol.seed + self.replicate",
        new="self.protocol.seed",
        test="tests/harness/results/test_record.py::test_each_replicate_has_its_own_seed_and_the_fourth_is_short",
    ),
    Mutation(
        symbol="harness.results.parity:_check",
        old="passed=error <= tolerance",
        new="passed=error <= 10 * tolerance",
        test="tests/harness/results/test_parity_numbers.py::test_the_typical_error_has_a_tolerance_of_its_own",
    ),
    Mutation(
        symbol="pipeline.report.compare:_comparison",
        old='if judgements[replicate].state == "passed"]',
        new="]",
        test="tests/pipeline/report/test_compare.py::test_one_failed_replicate_fails_the_row_and_an_unchecked_one_is_left_out",
    ),
    # The ratio.
    Mutation(
        symbol="harness.results.statistics:SAME_WITHIN",
        old="1.01",
        new="1.02",
        test="tests/harness/results/test_sequential.py::test_verdict_of_an_interval",
    ),
    Mutation(
        symbol="harness.results.sequential:CRITICAL_VALUES",
        old="12: {4: 7.649,",
        new="12: {4: 4.303,",
        test="tests/harness/results/test_sequential.py::test_estimate_at_four_pairs_by_hand",
    ),
    Mutation(
        symbol="harness.results.ratios:log_ratios_of_quads",
        old="- theirs[2 * k] - theirs[2 * k + 1]",
        new="- theirs[2 * k + 1] - theirs[2 * k + 1]",
        test="tests/harness/results/test_ratios.py::test_ratio_of_neighbouring_blocks_by_hand",
    ),
    Mutation(
        symbol="harness.results.sequential:around_orders",
        old="if one.jax_first == first",
        new="",
        test="tests/harness/results/test_sequential.py::test_estimate_at_four_pairs_by_hand",
    ),
    Mutation(
        symbol="harness.job.interleaved:PATTERN",
        old="(0, 1, 1, 0)",
        new="(0, 1, 0, 1)",
        test="tests/harness/job/test_interleaved.py::test_turns_are_a_b_b_a_until_neither_wants_more",
    ),
    Mutation(
        symbol="harness.job.steps:in_turn",
        old="[::-1]",
        new="",
        test="tests/harness/job/test_steps.py::test_who_is_started_first_alternates_where_two_take_turns",
    ),
    # Processes: what a measurement is given, and who is beside it.
    Mutation(
        symbol="harness.job.children:child_environment",
        old='"CUDA_DEVICE_MAX_CONNECTIONS": "32",',
        new="",
        test=f"{CHILDREN}::test_child_environment_has_cudas_defaults_which_the_user_may_override",
    ),
    Mutation(
        symbol="harness.job.children:child_environment",
        old='if not name.lower().endswith("_proxy")',
        new="",
        test=f"{CHILDREN}::test_no_proxy_is_asked_for_the_way_to_another_rank",
    ),
    Mutation(
        symbol="harness.job.main:cache_variables",
        old="{name: str(folder / cache) for name, cache in CACHE_FOLDERS.items()} | ",
        new="",
        test=f"{CHILDREN}::test_jax_keeps_its_programs_only_for_another_process",
    ),
    Mutation(
        symbol="harness.job.main:_run_rank",
        old="os.environ.update(cache_variables(caches, kept=task.caches_kept))",
        new="pass",
        test="tests/harness/job/test_warm_start.py::test_process_that_finds_filled_caches",
    ),
    Mutation(
        symbol="harness.job.main:thread_variables",
        old="cpus // world.size",
        new="cpus",
        test=f"{CHILDREN}::test_ranks_of_one_machine_share_its_cpus",
    ),
    Mutation(
        symbol="harness.job.main:die_with_parent",
        old="ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)",
        new="pass",
        test="tests/harness/job/test_several_ranks.py::test_no_rank_outlives_the_job_and_the_next_start_goes_on",
    ),
    Mutation(
        symbol="harness.job.children:_LocalRank._end_what_it_left",
        old="os.killpg(self._process.pid, signal.SIGKILL)",
        new="self._process.kill()",
        test="tests/harness/job/test_job.py::test_fault_is_recorded_with_its_reason",
    ),
    Mutation(
        symbol="harness.job.turn:turn",
        old='stack.enter_context(hold(machine_lock(f"turn-{device}"), while_waiting=wait))',
        new="pass",
        test="tests/harness/job/test_turn.py::test_machine_and_its_gpu_are_locked_while_a_job_measures",
    ),
    Mutation(
        symbol="harness.job.turn:keep_busy",
        old='take_for_life(machine_lock(f"busy-{device}"))',
        new="pass",
        test="tests/faults/test_quick.py::test_a_rank_that_has_lost_its_job_is_waited_for",
    ),
    Mutation(
        symbol="harness.locks:_open",
        old="path.parent.chmod(0o1777)",
        new="pass",
        test="tests/harness/test_locks.py::test_lock_folder_is_for_every_user_of_the_machine",
    ),
    Mutation(
        symbol="pipeline.submission.slurm:MAX_TIMEOUTS",
        old="5",
        new="4",
        test="tests/pipeline/submission/test_submit.py"
        "::test_job_is_requeued_after_five_time_limits_and_fails_after_the_sixth",
    ),
    # Files and data.
    Mutation(
        symbol="harness.files:write_atomically",
        old="os.fsync(file.fileno())",
        new="pass",
        test="tests/harness/test_files.py::test_file_is_synced_with_its_whole_content_before_it_has_its_name",
    ),
    Mutation(
        symbol="harness.files:_link",
        old="os.link(source, path)",
        new="source.replace(path)",
        test="tests/harness/test_files.py::test_second_of_two_writers_is_refused",
    ),
    Mutation(
        symbol="harness.measure.fake_cuda_guard:require_real_cuda",
        old="if hasattr(loaded, SYMBOL):",
        new="if False:",
        test="tests/fake_cuda/test_guard.py::test_a_measurement_on_the_fake_fails",
    ),
    Mutation(
        symbol="harness.work.datasets:_download_problem",
        old="with network_timeout(NETWORK_TIMEOUT_S):",
        new="if True:",
        test="tests/harness/work/test_datasets.py::test_download_has_a_time_limit_on_its_connections",
    ),
    Mutation(
        symbol="harness.work.augmentation:draw_crops",
        old="turned < 0.5",
        new="turned < 0.1",
        test="tests/harness/work/test_augmentation.py::test_crops_lie_in_the_image_and_keep_to_the_rule",
    ),
    Mutation(
        symbol="tests.addresses:why_missing",
        old="return None if answer is None else str(answer)",
        new="return None",
        test="tests/whole/test_addresses.py::test_missing_file_is_told_from_one_that_is_there",
    ),
    # What others may see, and README's first command.
    Mutation(
        symbol="pipeline.report.owner:OF_THE_OWNER",
        old='"cluster", "partition", "qos", "nodelist", "job_name"',
        new="",
        test=f"{OWNER}::test_no_name_that_is_injected_anywhere_is_published",
    ),
    Mutation(
        symbol="pipeline.report.owner:Names.replaced",
        old="return self._without_names(text)",
        new="return text",
        test=f"{OWNER}::test_no_name_that_is_injected_anywhere_is_published",
    ),
    Mutation(
        symbol="pipeline.report.owner:Names._cleaned_value",
        old="if name in PUBLISHED_VARIABLES",
        new="",
        test=f"{OWNER}::test_no_name_that_is_injected_anywhere_is_published",
    ),
    Mutation(
        symbol="pipeline.report.publish:_write",
        old="    if found:\n",
        new="    if False:\n",
        test=f"{OWNER}::test_measurement_with_a_name_is_refused_and_nothing_is_written",
    ),
    Mutation(
        symbol="harness.results.environment:relevant_variables",
        old="and not SECRET.search(name) ",
        new="",
        test="tests/harness/results/test_environment.py::test_variables_that_matter_and_no_secret",
    ),
    Mutation(
        symbol="harness.job.wandb_process:SETTINGS",
        old='"disable_git": True,',
        new="",
        test="tests/harness/job/test_tracker.py::test_client_uploads_no_code_no_git_state_and_no_console",
    ),
    Mutation(
        symbol="experiments.yaml",
        old="    parts: [{benchmarks: [mnist], use_cases: [1, 3]}]",
        new="    parts: [{benchmarks: [mnist], use_cases: [1]}]",
        test="tests/harness/experiments/test_presets.py::test_demo_measures_these_four_sides_once",
    ),
    Mutation(
        symbol="Makefile",
        old="--preset demo --executor local --wait",
        new="--preset demo --wait",
        test="tests/whole/test_install.py::test_make_demo_installs_and_measures_the_demo_here_without_slurm",
    ),
]


class NotFoundError(Exception):
    """A symbol or its line is not there any more."""


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source of the symbol's file with the change in it.

    Raises:
        NotFoundError: the file has no such symbol, or the symbol has the text not once.
    """
    first, last = _lines_of(mutation, source)
    lines = source.splitlines(keepends=True)
    own = "".join(lines[first:last])
    if (count := own.count(mutation.old)) != 1:
        raise NotFoundError(
            f"{mutation.symbol} has the text {count} times that it should have once: {mutation.old!r}. "
            f"Name its successor in tests/mutations.py"
        )
    return "".join([*lines[:first], own.replace(mutation.old, mutation.new), *lines[last:]])


def _lines_of(mutation: Mutation, source: str) -> tuple[int, int]:
    """From the first line of the symbol, counted from 0, to behind its last."""
    if ":" not in mutation.symbol:
        return 0, len(source.splitlines())
    body: Sequence[ast.stmt] = ast.parse(source).body
    names = mutation.symbol.partition(":")[2].split(".")
    for name in names:
        node = next((one for one in body if name in _names_of(one)), None)
        if node is None:
            raise NotFoundError(f"there is no {mutation.symbol}: name its successor in tests/mutations.py")
        body = getattr(node, "body", [])
    return node.lineno - 1, node.end_lineno or node.lineno


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@dataclass(frozen=True)
class Result:
    mutation: Mutation
    outcome: Outcome
    said: str = ""
    """Why it is not red."""


def copy_of(repository: Path, folder: Path) -> Path:
    """Copy what git knows of the repository, or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, folder / name)
    return folder


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """The exit status of pytest, None if it took too long, and what it said at its end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"longer than {TIMEOUT_S} s"
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-15:])


def result_of(mutation: Mutation, folder: Path) -> Result:
    """Change the copy, run the test, and change it back."""
    path = folder / mutation.path
    try:
        before = path.read_text(encoding="utf-8")
        path.write_text(mutated(mutation, before), encoding="utf-8")
    except (NotFoundError, FileNotFoundError) as error:
        return Result(mutation, "NOT FOUND", str(error))
    try:
        status, said = run_tests(folder, [mutation.test])
    finally:
        path.write_text(before, encoding="utf-8")
    if status is None:
        return Result(mutation, "HANGS", said)
    outcome: Outcome = {0: "GREEN", 1: "red"}.get(status, "NO TEST")  # type: ignore[assignment]
    return Result(mutation, outcome, "" if outcome == "red" else said)


def results_of(mutations: Sequence[Mutation], repository: Path = REPOSITORY) -> Iterator[Result]:
    """In the order of `mutations`, as they come."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as base:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(min(AT_ONCE, len(mutations))):
            folders.put(copy_of(repository, Path(base) / str(number)))

        def result(mutation: Mutation) -> Result:
            folder = folders.get()
            try:
                return result_of(mutation, folder)
            finally:
                folders.put(folder)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(result, mutations)


def why_not_green(mutations: Sequence[Mutation], repository: Path = REPOSITORY) -> str | None:
    """What the tests say without any mutation; None if all pass, without which a red one would mean nothing."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as base:
        status, said = run_tests(copy_of(repository, Path(base)), sorted({one.test for one in mutations}))
    return None if status == 0 else said


def main(arguments: Sequence[str] | None = None, mutations: Sequence[Mutation] = MUTATIONS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutations whose symbol or test has one of these in it")
    words = parser.parse_args(arguments).words
    chosen = [one for one in mutations if not words or any(word in f"{one.symbol} {one.test}" for word in words)]
    if (said := why_not_green(chosen)) is not None:
        print(f"Without any mutation, these tests do not pass:\n{said}")
        return 1
    print("mutation | test | outcome")
    wrong = 0
    for result in results_of(chosen):
        print(f"{result.mutation.name} | {result.mutation.test} | {result.outcome}", flush=True)
        if result.outcome != "red":
            wrong += 1
            print("    " + result.said.replace("\n", "\n    "), flush=True)
    print(f"{len(chosen)} mutations, {wrong} of them not red")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
