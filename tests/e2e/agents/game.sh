# game.sh - task:guess, led by agent.py: sourced by tests of agents in their folder, behind
# expect.sh.
#
# A test sets `here` before. play.ini is the recipe, agent.py a copy that the test may change.
# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0

# recipe AGENT: task:guess, led by it.
recipe() {
    tiny_recipe 4 | sed "s/task:max/task:guess/; s/response-len = 2/response-len = 12/
        s/^rm-type.*/custom-agent-path = $1/"
}

cp "$here/agent.py" agent.py
recipe 'python3 agent.py play' >play.ini
echo 'agent-max-branches = 8' >branches
sed -i '/^custom-agent-path/r branches' play.ini
