# game.sh - setup of the agent tests: task:guess with agent.py; sourced with INVAR FOLDER.
#
# Creates the folder, changes to it and sources expect.sh and launch.sh. play.ini is the recipe,
# agent.py a copy that the test may change.
# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
invar=$(readlink -f "$1") folder=$2 root=$PWD
rm -rf "$folder"
here=$PWD/tests/e2e/agents
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$root/tests/e2e/expect.sh"
# shellcheck source=tests/e2e/ranks/launch.sh
source "$root/tests/e2e/ranks/launch.sh"

# recipe AGENT: prints a recipe of task:guess with this agent.
recipe() {
    tiny_recipe 4 | sed "s/task:max/task:guess/; s/response-len = 2/response-len = 12/
        s/^rm-type.*/custom-agent-path = $1/"
}

cp "$here/agent.py" agent.py
recipe 'python3 agent.py play' >play.ini
# One program serves all sessions of most runs, because starting programs takes most of their time.
printf 'agent-max-branches = 8\nagent-concurrency = 1\n' >branches
sed -i '/^custom-agent-path/r branches' play.ini
