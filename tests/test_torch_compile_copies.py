"""What ``relayout.torch.compile(model)`` returns, as an object: copied, pickled, moved, shared, forked."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.torch import compiling  # noqa: E402
from test_torch_compile import _fresh, agree, image, resnet  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")


def small() -> Any:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()


# -- copies -------------------------------------------------------------------------------------------------


def test_a_copy_has_weights_and_a_report_of_its_own() -> None:
    model = small()
    made = rl.torch.compile(model, format="nhwc", fullgraph=True)
    x = image()
    with torch.no_grad():
        agree(made(x), model(x))
        other = copy.deepcopy(made)
        assert other.explain().graphs == []
        assert other._orig_mod is not model
        for one in other.parameters():
            one.mul_(2)
        torch._dynamo.reset()  # so that both are compiled again, whatever dynamo shares
        agree(other(x), other._orig_mod(x))
        agree(made(x), model(x))
    assert len(other.explain().graphs) == 1
    assert "nhwc" in str(other.explain())


def test_a_shallow_copy_shares_the_model() -> None:
    made = rl.torch.compile(small(), format="nhwc")
    other = copy.copy(made)
    assert other._orig_mod is made._orig_mod
    x = image()
    with torch.no_grad():
        agree(other(x), made(x))
    assert other.explain() is not made.explain()


def test_a_copy_within_a_copy() -> None:
    inner = rl.torch.compile(small())
    outer = nn.ModuleDict({"one": inner, "again": inner, "plain": inner._orig_mod})
    other = copy.deepcopy(outer)
    assert other["one"] is other["again"]
    assert other["one"]._orig_mod is other["plain"]
    assert other["plain"] is not outer["plain"]
    x = image()
    with torch.no_grad():
        agree(other["one"](x), inner(x))


def test_the_backend_by_name_on_copies_of_models() -> None:
    model = small()
    made = torch.compile(model, backend=compiling.backend)
    x = image()
    with torch.no_grad():
        before = made(x)
        for other in (torch.compile(copy.deepcopy(model), backend=compiling.backend), copy.deepcopy(made)):
            for one in other.parameters():
                one.mul_(3)
            agree(other(x), other._orig_mod(x))
            assert not torch.equal(other(x), before)
            agree(made(x), before)


def test_averaged_models() -> None:
    """``AveragedModel`` copies what it averages."""
    made = rl.torch.compile(small())
    average = torch.optim.swa_utils.AveragedModel(made)
    x = image()
    with torch.no_grad():
        agree(average(x), made(x))
        for one in made.parameters():
            one.mul_(2)
        average.update_parameters(made)
        agree(average(x), made(x))


# -- files --------------------------------------------------------------------------------------------------


def test_pickling_is_refused_and_says_what_to_do() -> None:
    made = rl.torch.compile(small())
    for write in (pickle.dumps, lambda one: torch.save(one, io.BytesIO())):
        with pytest.raises(pickle.PicklingError, match=r"pickle the model that was compiled .* state_dict"):
            write(made)
    with torch.no_grad():
        x = image()
        agree(pickle.loads(pickle.dumps(made._orig_mod))(x), made(x))


def test_states() -> None:
    one, other = (rl.torch.compile(small()) for _ in range(2))
    x = image()
    with torch.no_grad():
        other._orig_mod[0].weight.mul_(2)
        assert not torch.equal(one(x), other(x))
        assert one.state_dict().keys() == torch.compile(small(), backend="eager").state_dict().keys()
        one.load_state_dict(other.state_dict())
        agree(one(x), other(x))
        one.load_state_dict({name: 2 * value for name, value in other.state_dict().items()}, assign=True)
        agree(one(x), one._orig_mod(x))


# -- switches -----------------------------------------------------------------------------------------------


def test_modes_and_data_types() -> None:
    model = small()
    made = rl.torch.compile(model)
    x = image(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            for training in (False, True):
                made.train(training)
                assert model.training == model[1].training == made.training == training
                twin = copy.deepcopy(model)
                agree(made(x), twin(x))
                torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
        made.eval()
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            assert made.to(dtype) is made
            agree(made(x.to(dtype)), model(x.to(dtype)), 3e-2)
        made.to(memory_format=torch.channels_last)
        agree(made(x), model(x))
    made.requires_grad_(False)
    agree(made(x), model(x))


def test_models_with_one_anothers_weights() -> None:
    one, other = small(), small()
    fast, second = rl.torch.compile(one), rl.torch.compile(other)
    x = image()
    with torch.no_grad():
        first = fast(x), second(x)
        for a, b in zip(one.modules(), other.modules(), strict=True):
            if isinstance(a, nn.Conv2d):
                a.weight, b.weight = b.weight, a.weight
                a.bias, b.bias = b.bias, a.bias
        agree(fast(x), first[1])
        agree(second(x), first[0])
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            a.data, b.data = b.data, a.data
        agree(fast(x), first[0])
        agree(second(x), first[1])
        other.load_state_dict(one.state_dict())
        agree(second(x), first[0])


def test_explanations_before_and_after() -> None:
    made = rl.torch.compile(small())
    assert str(made.explain()) == "nothing was compiled"
    with torch.no_grad():
        made(image())
    assert made.explain() is made.explain()
    assert made.explain().left == {}
    function = rl.torch.compile(lambda x: torch.relu(x @ x))
    function(torch.randn(64, 64))
    assert function.explain().taken["aten.mm.default"] == 1


# -- threads and processes ----------------------------------------------------------------------------------


def test_first_calls_in_several_threads_at_once() -> None:
    models = [resnet() for _ in range(2)]
    several = [rl.torch.compile(model) for model in models]
    x = image(2, 3, 32, 32)
    with torch.no_grad():
        wanted = [model(x) for model in models]
    wrong: list[BaseException] = []
    begin = threading.Barrier(4)

    def work(k: int) -> None:
        try:
            begin.wait()
            with torch.no_grad():
                for _ in range(5):
                    agree(several[k % 2](x), wanted[k % 2])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


FORKED = """
import os
import torch
import relayout as rl

torch.manual_seed(0)
torch.set_num_threads(2)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1),
).eval()
made = rl.torch.compile(model)
x = torch.randn(2, 3, 64, 64)
with torch.inference_mode():
    wanted = made(x)
    child = os.fork()
    if child == 0:
        same = torch.equal(made(x), wanted)
        model[0].weight.zero_()
        changed = not torch.equal(made(x), wanted)
        os._exit(0 if same and changed else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert torch.equal(made(x), wanted)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_calls_what_its_parent_has_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "done\n", done.stderr
