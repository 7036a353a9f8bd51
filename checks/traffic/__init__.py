"""Requests that never stop, while everything that can happen to a deployment happens to it.

    questions  asking  tally  load     what is asked, how, and what came of it
    seen  reading  truth  witness      what the API server holds, and whether the status is true
    routers                            what routers have resumed and held
    victims  scene                     what is killed, and the stage on which events play
    changes  losses  control           the events
    verdict                            what counts as an error, and the report

Run by `make traffic` on the local node; the tests in tests/e2e play some of the events.
"""
