"""What every measurement leaves in its folder: NAME.json with everything, NAME.csv with a line for
each figure, both written whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.files import write_result


def write_tables(
    out: Path, name: str, report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """OUT/NAME.json is `report`; OUT/NAME.csv has `rows`, a column for each of their keys."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    paths = [out / f"{name}.json", out / f"{name}.csv"]
    for path, content in zip(paths, (text, table.getvalue()), strict=True):
        write_result(path, content)
    return paths
