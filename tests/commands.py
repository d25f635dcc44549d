"""What the tests of the command line share."""


def write_csv(path, **columns):
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def failed_with(result, message):
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    return True


def run_batch(run, *arguments, out="out.parquet"):
    return run("batch", *arguments, "--validation", "val.csv", "--out", out)
