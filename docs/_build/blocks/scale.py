"""The generated blocks on audits of many rows."""

from collections.abc import Callable, Mapping

from blocks.rows import rows, table


def scale() -> str:
    """CPU time and peak memory of audits of many rows and groups."""
    names = {
        "audit-1m": "audit of a folder of Parquet files",
        "audit-10m": "audit of a folder of Parquet files",
        "audit-30m": "audit of a folder of Parquet files",
        "audit-100m": "audit of a folder of Parquet files",
        "groups-1000": "audit of a frame with many groups",
        "sweep-1m": "gaps and balanced accuracy at every threshold",
        "two-attributes": "audit by two attributes and their intersection",
        "two-attributes-fairlearn": "Fairlearn: six rates of the intersections, 1,000 resamples of rows",
    }
    found = rows("../benchmarks/scale/rows.csv")
    lines = [
        [
            names[line.benchmark],
            f"{line.rows:,.0f}",
            f"{line.patients:,.0f}",
            f"{line.groups:.0f}",
            f"{line.cpu_s:,.1f} s",
            f"{line.peak_mb:,.0f} MB",
        ]
        for line in found[found["benchmark"].isin(names)].itertuples()
    ]
    return table(("task", "rows", "patients", "groups", "CPU time", "peak memory"), lines)


def short() -> str:
    """Time and memory of the largest audit."""
    found = rows("../benchmarks/scale/rows.csv")
    most = found[found["benchmark"].str.startswith("audit-")].sort_values("rows").iloc[-1]
    return (
        f"An audit of {most['rows']:,.0f} rows of {most['patients']:,.0f} patients took {most['cpu_s']:.0f} s of CPU time and "
        f"{most['peak_mb']:,.0f} MB.\n"
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "scale": scale,
    "scale-short": short,
}
