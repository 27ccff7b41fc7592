#!/usr/bin/env bash
# Coordinate a team of shell agents with nothing but the agentbus command line.
#
# A coordinator sends three build jobs to a pool. Two executors, each a shell process of its own, receive them, record
# the result in shared state, and answer. The coordinator prints the results and the status of the bus.
#
#     bash examples/shell_team.sh          # on a temporary bus
#     bash examples/shell_team.sh BUS      # a directory, or postgresql://user@host/database
#
# The command agentbus must be on the PATH: activate its virtual environment first.
set -euo pipefail

# Print one message of the caller: lease, priority, type, sender and payload, separated by tabs.
receive() {
    agentbus receive --wait 60 "$@"
}

# Run one executor: build parts until the coordinator sends a control message.
execute() {
    local name=$1 message lease type sender part
    AGENTBUS_AGENT=$(agentbus register "$name" --type executor --pool builders --pid $$) # fails when this shell is gone
    export AGENTBUS_AGENT
    agentbus send coordinator note ready --text > /dev/null
    while true; do
        message=$(receive)
        IFS=$'\t' read -r lease _ type sender part <<< "$message"
        if [ "$type" = control ]; then
            agentbus ack "$lease" > /dev/null
            agentbus complete > /dev/null
            return
        fi
        agentbus progress 50 "building $part for $sender"
        sleep 0.2 # the build
        agentbus state set "$part" "{\"built_by\": \"$name\"}" --of builds > /dev/null
        # The answer and the acknowledgement are one commit.
        agentbus reply "$lease" completion_notification "$part" --text > /dev/null
    done
}

# Run the coordinator: start the team, send the jobs, collect the answers, stop the team.
coordinate() {
    local executors=(builder-1 builder-2) parts=(parser storage report) name part message sender
    agentbus init > /dev/null
    AGENTBUS_AGENT=$(agentbus register coordinator --type coordinator --pid $$)
    export AGENTBUS_AGENT

    set -m # each executor leads a process group, which clean_up can end as a whole
    for name in "${executors[@]}"; do
        bash "$0" --executor "$name" &
        team+=($!)
    done
    set +m
    for name in "${executors[@]}"; do
        receive --ack > /dev/null # ready: the pool exists once an executor has joined it
    done

    for part in "${parts[@]}"; do
        agentbus send pool:builders task_assignment "$part" --text > /dev/null
    done
    for part in "${parts[@]}"; do
        message=$(receive --ack)
        IFS=$'\t' read -r _ _ _ sender part <<< "$message"
        echo "$sender built $part"
    done

    for name in "${executors[@]}"; do
        agentbus send "$name" control '{"action": "stop"}' > /dev/null
    done
    wait "${team[@]}"
    team=()
    agentbus complete > /dev/null
    echo "results:"
    agentbus state list --of builds | cut -f 1,6
    echo "status:"
    agentbus status | grep '^agent\|^messages'
}

# Leave nothing behind: no process of the team, and no temporary bus.
clean_up() {
    [ ${#team[@]} -eq 0 ] || kill -- "${team[@]/#/-}" 2> /dev/null || true
    [ -z "$temporary" ] || rm -rf "$temporary"
}

team=()
temporary=
case "${1:-}" in
    --executor)
        execute "$2"
        ;;
    *)
        trap clean_up EXIT
        [ $# -gt 0 ] || temporary=$(mktemp -d)
        export AGENTBUS_URL="${1:-$temporary/bus}"
        coordinate
        ;;
esac
