#!/bin/bash
# @title@. Submit it with:
@submit@
# Submit it again to go on after a time limit: trials that were interrupted begin again.
@directives@

@setup@
@job@

@search@ & child=$!
await_child
[ -z "$stopped" ] || requeue_if_preempted
exit "$status"
