"""The judge against invented worlds: how often it errs, and what it finds within two hours.

Requests, batches, pods, content and noise are invented (`worlds`, `traffic`); the verdicts are the
operator's own code, called at the end of every turn as in a trial.
"""
