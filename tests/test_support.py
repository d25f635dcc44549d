"""Tools that know no statistics: limits, progress bars, cores and threads."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from gsb3se.support import limits, machine, progress


def test_a_limit_is_a_number_with_a_reason():
    every = limits.all_limits()
    assert every["EXACT_CHAINS"] == limits.EXACT_CHAINS == 300
    assert 299 < limits.EXACT_CHAINS <= 300 and f"{limits.EXACT_CHAINS:,}" == "300"
    for limit in every.values():
        assert limit >= 2 and len(limit.reason) > 20
    assert limits.as_markdown().count("\n") == len(every) + 1


def test_every_limit_is_what_some_code_goes_by():
    package = Path(limits.__file__).parent.parent
    folders = (package, package.with_name("gsb3se_amortized"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    code = "".join(path.read_text() for path in files if path != Path(limits.__file__))
    for name in limits.all_limits():
        assert len(re.findall(rf"\b{name}\b", code)) >= 2, f"{name} is imported and used nowhere"


def test_a_bar_that_is_not_shown_writes_nothing(capfd):
    with progress.progress_bars(shown=False) as add:
        bar = add("windows", 3)
        bar.advance(1)
        bar.update(3, total=4, description="more")
    assert capfd.readouterr() == ("", "")


def test_a_bar_goes_to_standard_error(capfd):
    with progress.progress_bar("columns", 3, shown=True) as bar:
        bar.advance(1)
        bar.update(7, total=8, description="rows")
    told = capfd.readouterr()
    assert told.out == "" and "rows" in told.err and "7/8" in told.err


def test_cores_are_those_this_process_may_use():
    assert 1 <= machine.available_cores() <= os.cpu_count()


def test_one_thread_gives_back_what_it_took():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    torch = pytest.importorskip("torch")

    def threads():
        pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        return torch.get_num_threads(), [pool["num_threads"] for pool in pools]

    np.linalg.inv(np.eye(3))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        all_before = threads()
        with pytest.raises(KeyError), machine.one_thread():
            assert threads()[0] == 1 and set(threads()[1]) == {1}
            raise KeyError
        assert threads() == all_before
    finally:
        torch.set_num_threads(before)
