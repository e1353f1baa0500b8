"""From the results of runs to a table, plots and one HTML report.

Nothing is imported here; start at `results.RunResult` and `write.write_report`.
"""
