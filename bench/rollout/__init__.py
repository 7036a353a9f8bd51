"""The judge against made-up fleets: how often it errs, and what finding out costs the users.

Requests, batches, pods, noise and failures are invented (`scenarios`, `fleet`); the judge is the
operator's own code, asked again and again with what a scrape would have counted, as in a trial.
"""
