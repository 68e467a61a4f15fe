"""Where a step's time goes, as a user's own training shows it.

    profile.py       ps.profile: begins, counts steps, reports; at_close.py the same for a whole script, by ROWSTEAD_PROFILE
    stopwatch.py     spans of any thread, and `span`, which ps.nn, ps.optim and ps.prefetch put around what they do
    taps.py          spans around a client's calls, there only while a profile runs
    steps.py         spans to the seconds of a step; server_times.py what the servers say of themselves
    breakdown.py     rows that add up to the step; report.py, advice.py and trace.py show them

docs/performance.md says how to read it. The pure half is steps.py, server_times.py, breakdown.py, advice.py, report.py and trace.py.
"""
