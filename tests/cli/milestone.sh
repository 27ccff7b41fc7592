#!/bin/sh
# The milestone story with nothing but `agentbus` and a shell: register, state, message, checkpoint, kill, detect, recover.
# Run in an empty directory, with `agentbus` on the PATH. Says what it found; ends with 1 at the first thing that is wrong.
set -eu

same() { # what, found, wanted
    [ "$2" = "$3" ] || { echo "$1: '$2', not '$3'" >&2; exit 1; }
    echo "$1: $2"
}

standing() { # of the session; a tab is written by printf, because not every sed knows one
    agentbus session status planning-001 | sed -n "s/^session$(printf '\t')status$(printf '\t')//p"
}

until_there() { # a file that somebody writes
    left=600
    until [ -e "$1" ]; do
        left=$((left - 1)); [ "$left" -gt 0 ] || { echo "no $1" >&2; exit 1; }
        sleep 0.05
    done
}

victims=
trap 'for pid in $victims; do kill -9 "$pid" 2>/dev/null || :; done' EXIT

agentbus init > /dev/null
same "session" "$(agentbus session start planning --milestone ms-123 --id planning-001)" planning-001

# Two agents, each in a process of its own that can be killed. They register with their pid: when it is gone, they failed.
sh -euc '
    AGENTBUS_AGENT=$(agentbus register exec-001 --type milestone-executor --session planning-001 --pid $$)
    export AGENTBUS_AGENT
    : > executor-there
    agentbus receive --wait 30 > received
    agentbus checkpoint create received "{\"design\": \"begun\"}" > /dev/null
    : > executor-at-work
    exec sleep 600
' & executor=$!
victims="$executor"
until_there executor-there
sh -euc '
    AGENTBUS_AGENT=$(agentbus register coord-001 --type milestone-coordinator --session planning-001 --pid $$)
    export AGENTBUS_AGENT
    agentbus state set scope "{\"files\": 12}" > /dev/null
    agentbus send exec-001 task_assignment "{\"phase\": \"design\"}" --priority 9 > /dev/null
    agentbus checkpoint create after_planning "{\"step\": 1}" > /dev/null
    agentbus progress 50 planned
    : > coordinator-there
    exec sleep 600
' & coordinator=$!
victims="$executor $coordinator"
until_there coordinator-there
until_there executor-at-work
same "running" "$(agentbus agents list --status running | cut -f 1 | paste -sd ' ')" "coord-001 exec-001"
same "interrupted before" "$(agentbus session interrupted)" ""

kill -9 "$coordinator" "$executor"
wait "$coordinator" "$executor" 2>/dev/null || :
agentbus recovery check > /dev/null
same "failed" "$(agentbus agents list --status failed | cut -f 1 | paste -sd ' ')" "coord-001 exec-001"
same "interrupted" "$(agentbus session interrupted | cut -f 1-3)" "$(printf 'planning-001\tms-123\tplanning')"
same "messages that wait" "$(agentbus messages list --status queued | wc -l | tr -d ' ')" 1

# What the dead would still say is refused.
code=0; AGENTBUS_AGENT=coord-001#1 agentbus state set scope 0 2> refused || code=$?
same "the dead are refused" "$code" 1

same "likeliest" "$(agentbus session recover planning-001 | grep ^option | head -n 1 | cut -f 2)" resume
agentbus session recover planning-001 --resume > /dev/null
same "session" "$(standing)" active

AGENTBUS_AGENT=$(agentbus register coord-001 --type milestone-coordinator --session planning-001)
export AGENTBUS_AGENT
same "a new life" "$AGENTBUS_AGENT" coord-001#2
same "its state" "$(agentbus state get scope)" '{"files":12}'
same "its checkpoint" "$(agentbus checkpoint restore after_planning)" '{"step":1}'

AGENTBUS_AGENT=$(agentbus register exec-001 --type milestone-executor --session planning-001)
same "the other's checkpoint" "$(agentbus checkpoint restore)" '{"design":"begun"}'
lease=$(agentbus receive --json | sed 's/.*"lease":"\([^"]*\)".*/\1/')
same "the same message" "${lease%#*}" "$(cut -f 1 received | sed 's/#.*//')"
agentbus reply "$lease" completion_notification '{"phase": "design", "done": true}' > /dev/null
agentbus complete

AGENTBUS_AGENT=coord-001#2
same "the answer" "$(agentbus receive --ack --json | grep -c '"payload":{"phase":"design","done":true}')" 1
agentbus complete
unset AGENTBUS_AGENT
agentbus session complete planning-001 > /dev/null
same "session" "$(standing)" completed
same "messages left" "$(agentbus messages list --status queued | wc -l | tr -d ' ')" 0
