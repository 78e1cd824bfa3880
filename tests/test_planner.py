"""The planner against brute force, a mixed-integer solver, recorded problems, and what others do."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from conftest import load_vectors
from formats_problems import (
    FORMATS,
    Network,
    dense,
    exchange,
    networks,
    problems,
    residual,
    shuffled,
    transformer,
)
from relayout.errors import LayoutError
from relayout.graph.planner import (
    Infeasible,
    Operation,
    Option,
    Problem,
    Solution,
    assign,
    evaluate,
    explain,
    greedy,
    read,
    solve,
    uniform,
)
from relayout.graph.planning import solving
from relayout.graph.planning.conversions import MOST, tree, tree_costs
from relayout.graph.planning.dominance import needed
from relayout.graph.planning.elimination import eliminate
from relayout.graph.planning.model import build
from relayout.graph.planning.search import search
from strategies import tried

# The definition


def making(problem: Problem, value: str, given: set[Hashable], wanted: set[Hashable]) -> float:
    """What it costs to make formats of a value: the shortest way from one set of formats to a larger one."""
    formats = set(problem.uses[value].formats) if problem.through else given | wanted
    least = {frozenset(given): 0.0}
    done = set()
    while left := least.keys() - done:
        there = min(left, key=least.__getitem__)
        if wanted <= there:
            return least[there]
        done.add(there)
        for format in formats - there:
            cost = least[there] + min(problem.conversion(value, src, format) for src in there)
            more = there | {format}
            least[more] = min(cost, least.get(more, math.inf))
    return math.inf


def cost(problem: Problem, choices: tuple[int, ...]) -> float:
    """What a choice of options costs."""
    chosen = [operation.options[i] for operation, i in zip(problem.operations, choices, strict=True)]
    there = {value: set(formats) for value, formats in problem.sources.items()}
    wanted: dict[str, set[Hashable]] = {value: {format} for value, format in problem.pins.items()}
    total = sum(option.cost for option in chosen)
    for operation, option in zip(problem.operations, chosen, strict=True):
        there |= {value: {format} for value, format in zip(operation.outputs, option.outputs, strict=True)}
        for value, format in zip(operation.inputs, option.inputs, strict=True):
            if problem.forced.get(value, format) != format:
                return math.inf
            wanted.setdefault(value, set()).add(format)
    return total + sum(making(problem, value, there[value], formats) for value, formats in wanted.items())


def brute_force(problem: Problem) -> float:
    """The least cost of all choices."""
    every = itertools.product(*(range(len(operation.options)) for operation in problem.operations))
    return min(cost(problem, choices) for choices in every)


def check(plan: Solution) -> None:
    """A plan's conversions make all that is read, each of what is there, and its cost is their sum."""
    problem = plan.problem
    there = {value: set(plan.written(value)) for value in problem.uses}
    total = [o.options[i].cost for o, i in zip(problem.operations, plan.choices, strict=True)]
    for one in plan.conversions:
        assert one.src in there[one.value]
        assert one.dst not in there[one.value]
        assert one.cost == problem.conversion(one.value, one.src, one.dst)
        assert one.readers or one.pinned
        there[one.value].add(one.dst)
        total.append(one.cost)
    for operation, index in zip(problem.operations, plan.choices, strict=True):
        for value, format in zip(operation.inputs, operation.options[index].inputs, strict=True):
            assert format in there[value]
            assert problem.forced.get(value, format) == format
    assert all(format in there[value] for value, format in problem.pins.items())
    assert plan.cost == math.fsum(total)
    assert plan.bound <= plan.cost
    assert all(len(line) <= 80 for line in str(plan).splitlines())


# Small problems, all choices


@settings(max_examples=tried(400), deadline=None)
@given(problems())
def test_no_choice_costs_less(problem: Problem) -> None:
    least = brute_force(problem)
    if math.isinf(least):
        with pytest.raises(Infeasible):
            solve(problem)
        return
    plan = solve(problem)
    check(plan)
    assert plan.exact
    assert plan.cost == least == cost(problem, plan.choices)


@settings(max_examples=tried(100), deadline=None)
@given(problems(operations=4, formats=5, whole=False, reads=5))
def test_no_choice_costs_less_with_more_formats(problem: Problem) -> None:
    least = brute_force(problem)
    if math.isinf(least):
        with pytest.raises(Infeasible):
            solve(problem)
        return
    plan = solve(problem)
    check(plan)
    assert plan.exact
    assert plan.cost == pytest.approx(least, rel=1e-12)


@settings(max_examples=tried(200), deadline=None)
@given(problems(), st.integers(0, 99))
def test_a_plan_does_not_depend_on_the_order_of_mappings(problem: Problem, seed: int) -> None:
    try:
        plan = solve(problem)
    except Infeasible as error:
        with pytest.raises(Infeasible, match=f"^{re.escape(str(error))}$"):
            solve(shuffled(problem, seed))
        return
    again = solve(shuffled(problem, seed))
    assert again.choices == plan.choices
    assert again.conversions == plan.conversions


@settings(max_examples=tried(200), deadline=None)
@given(problems())
def test_a_plan_never_costs_more_than_what_others_do(problem: Problem) -> None:
    try:
        plan = solve(problem)
    except Infeasible:
        for other in (lambda: greedy(problem), lambda: uniform(problem, "nchw")):
            with pytest.raises(Infeasible):
                other()
        return
    for choose in (lambda: greedy(problem), *(lambda f=f: uniform(problem, f) for f in FORMATS[:3])):
        try:
            other = choose()
        except Infeasible:
            continue
        check(other)
        assert plan.cost <= other.cost
        assert not other.exact


@settings(max_examples=tried(200), deadline=None)
@given(problems())
def test_a_best_plan_needs_no_option_that_is_dominated(problem: Problem) -> None:
    every = itertools.product(*needed(problem))
    assert min((cost(problem, choices) for choices in every), default=math.inf) == brute_force(problem)


def test_an_option_is_dominated_by_another_with_conversions_around_it() -> None:
    options = tuple(Option(f, (f,), (f,), price) for f, price in (("a", 9.0), ("b", 6.0), ("c", 2.0)))
    problem = Problem(
        (Operation("op", ("x",), ("y",), options),), lambda *_: 3.0, sources={"x": {"a", "b", "c"}}
    )
    assert needed(problem) == ((1, 2),)
    assert needed(problem.replaced(through=False)) == ((0, 1, 2),)


# Searching instead of eliminating


@settings(max_examples=tried(150), deadline=None)
@given(problems(), st.sampled_from([1, 8, 40]))
def test_a_bound_is_one_and_what_is_called_exact_is(problem: Problem, limit: int) -> None:
    least = brute_force(problem)
    try:
        plan = solve(problem, limit)
    except Infeasible as error:
        found_none = "no plan was found" in str(error)
        event("found none" if found_none else "impossible")
        if not found_none:
            assert math.isinf(least), "said to be impossible"
        return
    check(plan)
    assert plan.bound <= least * (1 + 1e-12) <= plan.cost * (1 + 2e-12)
    assert not plan.exact or plan.cost == pytest.approx(least, rel=1e-12)
    assert plan.gap == 0 or plan.bound < plan.cost


@given(st.integers(0, 10**6), st.integers(2, 7))
@settings(max_examples=tried(60), deadline=None)
def test_elimination_and_search_find_the_least_sum_of_tables(seed: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    sizes = [int(n) for n in chance.integers(1, 4, count)]
    tables = []
    for _ in range(int(chance.integers(1, 2 * count))):
        scope = tuple(sorted({int(v) for v in chance.integers(0, count, 3)}))
        table = chance.random([sizes[v] for v in scope])
        tables.append((scope, np.where(chance.random(table.shape) < 0.1, math.inf, table)))

    def total(values: tuple[int, ...] | dict[int, int]) -> float:
        return sum(float(table[tuple(values[v] for v in scope)]) for scope, table in tables)

    least = min(map(total, itertools.product(*map(range, sizes))))
    whole = eliminate(sizes, tables, 1 << 40)
    assert not whole.rest
    assert whole.constant == pytest.approx(least, rel=1e-12)
    if math.isfinite(least):
        assert total(whole.values({})) == pytest.approx(least, rel=1e-12)
    for limit in (1, 6, 30):
        found = search(sizes, tables, limit)
        assert found.bound <= least * (1 + 1e-9)
        assert found.cost >= least * (1 - 1e-9)
        if math.isfinite(found.cost):
            assert total(found.values) == pytest.approx(found.cost, rel=1e-9)


def entangled(count: int, seed: int) -> Problem:
    """Operations that read anything before them: no order keeps the tables small."""
    net = Network(random.Random(seed), FORMATS[:4])
    values = ["x", net.conv("x")]
    for _ in range(count):
        values.append(net.conv(net.same("add", *net.random.sample(values[-20:], 2))))
    net.same("concat", *values[-8:])
    return net.problem()


def test_what_is_too_entangled_gets_a_plan_and_a_bound() -> None:
    problem = entangled(30, 3)
    best = solve(problem)
    assert best.exact
    plan = solve(problem, 1 << 12)
    check(plan)
    assert plan.bound <= best.cost <= plan.cost <= greedy(problem).cost
    assert plan.gap < 0.1
    if not plan.exact:
        assert "gap" in str(plan)


# Larger problems, a mixed-integer solver


def by_integer_programming(problem: Problem) -> float:
    """The least cost, by a model with nothing in common with the planner's.

    A copy is an edge between two formats of a value; each format that is read takes a unit of flow along
    edges that are paid, from the format that is written.
    """
    optimize = pytest.importorskip("scipy.optimize")
    sparse = pytest.importorskip("scipy.sparse")
    costs: list[float] = []
    integral: list[int] = []
    rows: list[tuple[dict[int, float], float, float]] = []

    def variable(cost: float = 0.0, whole: bool = False) -> int:
        costs.append(cost)
        integral.append(int(whole))
        return len(costs) - 1

    chosen = []
    for operation in problem.operations:
        own = [variable(option.cost, True) for option in operation.options]
        rows.append((dict.fromkeys(own, 1.0), 1, 1))
        chosen.append(own)
    for use in problem.uses.values():
        readers: dict[Hashable, list[int]] = {}
        for index in use.readers:
            operation = problem.operations[index]
            for x, option in zip(chosen[index], operation.options, strict=True):
                for value, format in zip(operation.inputs, option.inputs, strict=True):
                    if value == use.value:
                        readers.setdefault(format, []).append(x)
        wanted = {}
        for format in {*readers} | ({use.pin} if use.pin is not None else set()):
            wanted[format] = variable()
            rows.append(({wanted[format]: 1.0}, float(format == use.pin), 1))
            rows += [({wanted[format]: 1.0, x: -1.0}, 0, math.inf) for x in readers.get(format, [])]
            if format != use.pin:  # wanted by nobody, not wanted
                rows.append(({wanted[format]: 1.0} | dict.fromkeys(readers[format], -1.0), -math.inf, 0))
        edges = {}
        for src, dst in itertools.permutations(use.formats, 2):
            price = problem.conversion(use.value, src, dst)
            if math.isfinite(price) and (problem.through or dst in wanted):
                edges[src, dst] = variable(price, True)
                if not problem.through:
                    rows.append(({edges[src, dst]: -1.0, wanted[dst]: 1.0}, 0, math.inf))
        if use.writer is None:
            written: dict[Hashable, list[int]] = {format: [] for format in use.given}
        else:
            operation, place = problem.operations[use.writer[0]], use.writer[1]
            written = {}
            for x, option in zip(chosen[use.writer[0]], operation.options, strict=True):
                written.setdefault(option.outputs[place], []).append(x)
        for target, amount in wanted.items():
            flows = {edge: variable() for edge in edges}
            rows += [({flows[edge]: -1.0, edges[edge]: 1.0}, 0, math.inf) for edge in edges]
            for format in use.formats:
                balance = {flow: 1.0 for (src, _), flow in flows.items() if src == format}
                balance |= {flow: -1.0 for (_, dst), flow in flows.items() if dst == format}
                if format in written:
                    supply = variable()
                    balance[supply] = -1.0
                    if written[format]:
                        rows.append(({supply: -1.0} | dict.fromkeys(written[format], 1.0), 0, math.inf))
                if format == target:
                    balance[amount] = 1.0
                rows.append((balance, 0, 0))
    matrix = sparse.lil_matrix((len(rows), len(costs)))
    for i, (row, _, _) in enumerate(rows):
        for j, factor in row.items():
            matrix[i, j] = factor
    bounds = [low for _, low, _ in rows], [high for *_, high in rows]
    limits = optimize.LinearConstraint(matrix.tocsr(), *bounds)
    found = optimize.milp(
        np.array(costs), integrality=integral, bounds=optimize.Bounds(0, np.inf), constraints=limits
    )
    assert found.success, found.message
    return float(found.fun)


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize(
    "net",
    [
        residual(24, 1, FORMATS[:4]),
        dense((5, 4), 2, FORMATS[:3]),
        transformer(2, 3, FORMATS[:3]),
        exchange(1, 3, 4),
    ],
    ids=["residual", "dense", "transformer", "exchange"],
)
def test_a_mixed_integer_solver_finds_nothing_better(net: Network, through: bool) -> None:
    problem = net.problem(through=through)
    plan = solve(problem)
    check(plan)
    assert plan.exact
    assert plan.cost == pytest.approx(by_integer_programming(problem), rel=1e-6)


@settings(max_examples=tried(25), deadline=None)
@given(problems(operations=15, formats=4, whole=False))
def test_a_mixed_integer_solver_agrees(problem: Problem) -> None:
    problem = problem.replaced(forced={})
    try:
        plan = solve(problem)
    except Infeasible:
        return
    check(plan)
    assert plan.exact
    assert plan.cost == pytest.approx(by_integer_programming(problem), rel=1e-6, abs=1e-6)


# Networks


@pytest.mark.parametrize(
    ("name", "net"), [*networks()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_networks_are_solved_exactly(name: str, net: Network) -> None:
    problem = net.problem()
    plan = solve(problem)
    check(plan)
    assert plan.exact
    assert plan.cost < min(greedy(problem).cost, *(uniform(problem, format).cost for format in FORMATS))


def test_dense_blocks_need_tables_of_few_variables() -> None:
    """One value feeds up to 24 concatenations, and each of those reads up to 25 values."""
    model = build(dense().problem())
    left = eliminate(model.sizes, model.tables, 30_000)
    assert left.rest == []


# Ten recorded problems


@pytest.fixture
def cases() -> list[dict[str, Any]]:
    return [dict(case) for case in load_vectors("megengine_planner_cases")["cases"]]


def test_recorded_problems(cases: list[dict[str, Any]]) -> None:
    assert len(cases) == 10
    for case in cases:
        expected = case.pop("expected")
        found = assign(case)
        assert found["exact"]
        assert round(found["cost_us"] * 1000) == round(expected["optimum_us"] * 1000), case["name"]
        assert len(found["conversions"]) == expected["reformats"], case["name"]
        configs = [op["options"][i]["config"] for op, i in zip(case["ops"], found["choices"], strict=True)]
        assert dict(Counter(configs)) == expected["config_counts"], case["name"]
        tensors = case["tensors"]
        made = [[*_sizes(tensors[t]), f"{src}>{dst}"] for t, src, dst in found["conversions"]]
        assert made == expected["reformat_list"], case["name"]


def _sizes(tensor: dict[str, Any]) -> list[Any]:
    return [*tensor["shape"], tensor["dtype"]]


def test_recorded_problems_by_integer_programming(cases: list[dict[str, Any]]) -> None:
    for case in cases[2:4]:
        problem = read(case)
        assert by_integer_programming(problem) == pytest.approx(solve(problem).cost, rel=1e-9)


def test_recorded_problems_beside_baselines(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        problem = read(case)
        plan = solve(problem)
        check(plan)
        assert plan.cost <= greedy(problem).cost
        plain = uniform(problem, "NCHW")
        assert plan.cost <= plain.cost
        if case["expected"]["all_NCHW_us"] is not None:
            assert plain.cost * 1e6 == pytest.approx(case["expected"]["all_NCHW_us"], abs=0.06)


def test_plain_data_in_another_form_is_refused() -> None:
    good: dict[str, Any] = {
        "ops": [{"in": [0], "out": 1, "options": [{"in": ["a"], "out": "a", "us": 1}]}],
        "conversions_us": {"0": {"b>a": 2.5}},
        "inputs": {"0": "b"},
    }
    assert assign(good) == {"cost_us": 3.5, "choices": [0], "conversions": [[0, "b", "a"]], "exact": True}
    for changed, said in (
        ({"ops": [{"in": [0], "out": 1}]}, "operation 0.*'options'"),
        (
            {"ops": [{"in": [0], "out": 1, "options": [{"in": ["a"], "out": "a", "us": "soon"}]}]},
            "operation 0",
        ),
        (
            {"ops": [{"in": [7], "out": 1, "options": [{"in": ["a"], "out": "a", "us": 1}]}]},
            "reads value '7'",
        ),
        ({"conversions_us": {"0": {"b to a": 2}}}, "SRC>DST"),
        ({"conversions_us": [1]}, "conversions_us: not of"),
        ({"conversions_us": {"0": {"b>a": -1}}}, "costs -1"),
        ({"conversions_us": {}}, "operation '0' reads value '0' as a; it is given as b"),
        ({"inputs": 5}, "inputs or outputs"),
    ):
        with pytest.raises(LayoutError, match=said):
            assign(good | changed)


# What is pinned, forced, or impossible


def chain(*formats: str, conversions: float | None = 1.0) -> Problem:
    """Operations behind each other, each in one format only."""
    operations = tuple(
        Operation(f"op{i}", (f"v{i}",), (f"v{i + 1}",), (Option(f, (f,), (f,), 1.0),))
        for i, f in enumerate(formats)
    )
    return Problem(operations, lambda value, src, dst: conversions, sources={"v0": {formats[0]}})


def test_a_value_that_is_pinned_exists_in_that_format_beside_others() -> None:
    problem = chain("a", "b", "b").replaced(pins={"v1": "c"})
    plan = solve(problem)
    check(plan)
    assert plan.formats("v1") == ("a", "c", "b") or plan.formats("v1") == ("a", "b", "c")
    assert plan.cost == 5
    assert [one.pinned for one in plan.conversions if one.dst == "c"] == [True]


def test_a_value_that_is_forced_is_read_in_that_format_only() -> None:
    options = tuple(Option(f, (f,), (f,), 1.0 + (f == "b")) for f in "ab")
    problem = Problem(
        (Operation("op0", ("x",), ("y",), options), Operation("op1", ("y",), ("z",), options)),
        lambda value, src, dst: 5.0,
        sources={"x": {"a"}},
    )
    assert solve(problem).cost == 2
    plan = solve(problem.replaced(forced={"y": "b"}))
    check(plan)
    assert plan.cost == 1 + 5 + 2
    assert plan.problem.operations[1].options[plan.choices[1]].name == "b"


def test_a_value_given_in_several_formats_is_converted_from_the_nearest() -> None:
    problem = Problem(
        (Operation("op", ("w",), ("y",), (Option("c", ("c",), ("c",), 1.0),)),),
        {("w", "a", "c"): 5.0, ("w", "b", "c"): 2.0},
        sources={"w": {"a", "b"}},
    )
    for through in (True, False):
        plan = solve(problem.replaced(through=through))
        assert [(one.src, one.cost) for one in plan.conversions] == [("b", 2.0)]


def test_conversions_pass_through_formats_that_nobody_reads() -> None:
    problem = Problem(
        (Operation("op", ("x",), ("y",), (Option("c", ("c",), ("c",), 1.0),)),),
        {("x", "a", "c"): 5.0, ("x", "a", "b"): 2.0, ("x", "b", "c"): 2.0},
        sources={"x": {"a"}},
    )
    plan = solve(problem)
    assert [(one.src, one.dst, one.readers) for one in plan.conversions] == [
        ("a", "b", ("op",)),
        ("b", "c", ("op",)),
    ]
    assert [one.src for one in solve(problem.replaced(through=False)).conversions] == ["a"]


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            chain("a", "a", "b", conversions=None),
            "'op2' reads value 'v2' as b; operation 'op1' writes it as a,",
        ),
        (
            chain("a").replaced(sources={"v0": {"b"}}, conversions={}),
            "'op0' reads value 'v0' as a; it is given as b",
        ),
        (
            chain("a", "a", conversions=None).replaced(pins={"v2": "c"}),
            "'v2' is pinned to c; operation 'op1' writes",
        ),
        (
            chain("a", "a").replaced(forced={"v1": "c"}),
            "operation 'op1' reads value 'v1' as a, .* forced to c",
        ),
        (Problem((Operation("f", (), ("y",), ()),), {}), "'f', which writes value 'y', has no options"),
    ],
)
def test_what_is_impossible_names_operation_and_value(problem: Problem, said: str) -> None:
    with pytest.raises(Infeasible, match=said):
        solve(problem)


def test_what_is_impossible_only_together_names_where_it_fails() -> None:
    """Each two operations go together, all three do not."""
    both = tuple(Option(f, (f,), (f,), 1.0) for f in "ab")
    crossed = (Option("ab", ("a", "b"), ("a",), 1.0), Option("ba", ("b", "a"), ("a",), 1.0))
    operations = (
        Operation("first", ("x",), ("y",), both),
        Operation("second", ("y",), ("z",), both),
        Operation("third", ("y", "z"), ("w",), crossed),
    )
    problem = Problem(operations, {("x", "a", "b"): 1.0}, sources={"x": {"a"}})
    with pytest.raises(Infeasible, match="operation 'third' reads value 'y' as a or b"):
        solve(problem)


def test_bad_problems_are_refused() -> None:
    option = Option("a", ("a",), ("a",), 1.0)
    x = {"x": {"a"}}
    op = Operation("op", ("x",), ("y",), (option,))
    for operations, more, said in (
        ((op, op), {}, "two operations 'op'"),
        ((op, Operation("q", ("x",), ("y",), (option,))), {}, "'q' writes value 'y', which there is"),
        ((Operation("q", ("z",), ("y",), (option,)),), {}, "'q' reads value 'z', which nothing"),
        ((Operation("q", ("x", "x"), ("y",), (option,)),), {}, "2 inputs and 1 output"),
        ((Operation("q", ("x",), ("y",), (Option("a", ("a",), ("a",), math.nan),)),), {}, "costs nan"),
        ((op,), {"pins": {"u": "a"}}, "value 'u' is pinned to a"),
        ((op,), {"forced": {"u": "a"}}, "value 'u' is forced to a"),
        ((op,), {"sources": {"x": "a"}}, "given in formats 'a'"),
        ((op,), {"sources": {"x": set()}}, "given in formats set"),
        ((op,), {"sources": {"x": {"b"}}, "conversions": {("x", "b", "a"): math.nan}}, "'x'.* costs nan"),
    ):
        problem = Problem(operations, {}, sources=x).replaced(**more)
        with pytest.raises(LayoutError, match=said):
            solve(problem)


def test_many_formats_that_all_depend_on_each_other_come_to_an_end() -> None:
    """What no table can hold: 40 formats, 40 readers, each with a format that nobody else wants."""
    labels = [f"f{i}" for i in range(40)]
    chance = random.Random(0)
    readers = tuple(
        Operation(f"op{i}", ("x",), (f"y{i}",), tuple(Option(f, (f,), (f,), 1.0) for f in (own, "f0", "f1")))
        for i, own in enumerate(labels)
    )
    conversions = {("x", a, b): chance.uniform(1, 2) for a in labels for b in labels if a != b}
    plan = solve(Problem(readers, conversions, sources={"x": {"f0"}}))
    check(plan)
    assert plan.cost == 40
    forced = tuple(Operation(o.name, o.inputs, o.outputs, o.options[:1]) for o in readers)
    for through in (True, False):
        plan = solve(Problem(forced, conversions, sources={"x": {"f0"}}, through=through))
        check(plan)
        assert plan.cost >= 40 + 39


def test_what_is_called_exact_is_where_conversions_are_not_the_best() -> None:
    """From eight formats on the tree of conversions is a good one; the bound is that of the best."""
    labels = [f"f{i}" for i in range(10)]
    for seed in range(8):
        chance = random.Random(seed)
        conversions = {("x", a, b): float(chance.randint(1, 9)) for a in labels for b in labels if a != b}
        readers = tuple(
            Operation(f"op{i}", ("x",), (), (Option(f, (f,), (), 1.0),)) for i, f in enumerate(labels)
        )
        problem = Problem(readers, conversions, sources={"x": {"f0"}})
        plan = solve(problem)
        check(plan)
        least = 10 + making(problem, "x", {"f0"}, {*labels})
        assert plan.bound <= least <= plan.cost
        assert plan.exact == (plan.cost == least)


# Parts


@settings(max_examples=tried(150), deadline=None)
@given(st.integers(1, 5), st.data())
def test_trees_of_conversions(count: int, data: st.DataObject) -> None:
    prices = st.one_of(st.integers(0, 9).map(float), st.just(math.inf))
    direct = [[0.0 if i == j else data.draw(prices) for j in range(count)] for i in range(count)]
    wanted = data.draw(st.integers(1, count))
    through = data.draw(st.booleans())
    sets, costs = tree_costs(np.array([direct]), wanted, wanted, through)
    conversions = {
        ("x", i, j): price for i, row in enumerate(direct) for j, price in enumerate(row) if price < math.inf
    }
    problem = Problem((), conversions, {"x": 0}, {"x": set(range(count))}, through=through)
    for row, bits in enumerate(sets):
        targets = {i for i in range(wanted) if bits >> i & 1}
        for root in range(count):
            least = making(problem, "x", {root}, targets)
            assert costs[0, row, root] == least
            if through:
                edges = tree(direct, [root], sorted(targets))
                assert not edges or sum(direct[a][b] for a, b in edges) == least
                assert edges or math.isinf(least) or targets <= {root}


def test_a_tree_for_more_formats_than_are_tried_in_all_ways() -> None:
    count = MOST + 4
    direct = [[abs(i - j) + 0.5 for j in range(count)] for i in range(count)]
    edges = tree(direct, [0], range(1, count))
    assert edges == [(i, i + 1) for i in range(count - 1)]


# What is printed


def test_an_explanation_proves_each_conversion() -> None:
    problem = residual(40, 5).problem()
    plan = solve(problem)
    explained = explain(plan)
    assert [proof.conversion for proof in explained.proofs] == list(plan.conversions)
    for proof in explained.proofs:
        assert proof.loss >= 0
        if proof.without is not None:
            check(proof.without)
            assert proof.without.cost == pytest.approx(plan.cost + proof.loss)
            one = proof.conversion
            assert all((c.value, c.dst) != (one.value, one.dst) for c in proof.without.conversions)
    lines = str(explained).splitlines()
    assert len(lines) == 1 + 2 * len(plan.conversions)
    assert all(len(line) <= 80 for line in lines)


def test_an_explanation_says_what_can_not_be_done_without() -> None:
    problem = chain("a", "b", conversions=2.0)
    (proof,) = explain(solve(problem)).proofs
    assert proof.without is None
    assert "nothing else is possible" in str(explain(solve(problem)))


def test_an_explanation_of_a_greedy_plan_finds_what_it_loses() -> None:
    problem = residual(40, 5).problem()
    plan = greedy(problem)
    explained = explain(plan)
    assert any(proof.loss < 0 for proof in explained.proofs)
    assert " less)" in str(explained)
    assert all(len(line) <= 80 for line in str(explained).splitlines())


def test_an_explanation_says_what_costs_nothing_to_do_without() -> None:
    options = tuple(Option(f, (f,), (f,), price) for f, price in (("a", 3.0), ("b", 1.0)))
    operations = (Operation("op0", ("x",), ("y",), options), Operation("op1", ("y",), ("z",), options[1:]))
    problem = Problem(operations, lambda *_: 2.0, sources={"x": {"a"}})
    choices = solve(problem).choices
    assert choices == (1, 0)
    moved = problem.replaced(conversions={("x", "a", "b"): 2.0, ("y", "a", "b"): 0.0})
    (proof,) = explain(evaluate(moved, choices)).proofs
    assert proof.loss == 0
    assert [one.value for one in proof.instead] == ["y"]
    assert proof.text == "as cheap without it, converting y"


def test_baselines_do_what_they_say() -> None:
    costs = {"a": 5.0, "b": 1.0}
    computing = tuple(Option(f, (f,), (f,), costs[f]) for f in "ab")
    moving = tuple(Option(f, (f,), (f,), 1.0 - (f == "a") / 2) for f in "ab")
    problem = Problem(
        (
            Operation("conv", ("x",), ("y",), computing, intensive=True),
            Operation("relu", ("y",), ("z",), moving),
            Operation("plain", ("z",), ("w",), moving[:1]),
        ),
        lambda value, src, dst: 100.0,
        sources={"x": {"a"}},
    )
    chosen = greedy(problem)
    assert [o.options[i].name for o, i in zip(problem.operations, chosen.choices, strict=True)] == [
        "b",
        "b",
        "a",
    ]
    assert chosen.cost == 1 + 1 + 0.5 + 200
    assert uniform(problem, "a").cost == 6
    assert uniform(problem, lambda value: "b").choices == (1, 1, 0)
    assert solve(problem).cost == 6


def test_evaluating_a_choice_that_is_impossible() -> None:
    with pytest.raises(
        Infeasible, match=r"value 'v1' is written by operation 'op0' as a and read by .*op1.* as b"
    ):
        evaluate(chain("a", "b", conversions=None), (0, 0))
    with pytest.raises(LayoutError, match="operation 'op1' has 1 options, and choice 1"):
        evaluate(chain("a", "a"), (0, 1))
    with pytest.raises(LayoutError, match="1 choices for 2 operations"):
        evaluate(chain("a", "a"), (0,))


def test_tables_of_networks_are_far_from_the_limit() -> None:
    for name, net in networks():
        model = build(net.problem())
        part = 2 if name == "U-Net++" else 100
        assert eliminate(model.sizes, model.tables, solving.LIMIT // part).rest == []
