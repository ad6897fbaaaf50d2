#!/usr/bin/env bash
# Installs the code-server that `pytest -m editors` drives into build/code-server, from npm's registry alone, also as root.
#
# Its own installation asks GitHub for compiled modules and refuses root. Here its scripts do not run: the modules that it
# needs are compiled against the headers of the Node.js at hand, and ripgrep is the machine's.
set -euo pipefail

fail() { echo "code-server.sh: $1" >&2; exit 2; }

command -v rg > /dev/null || fail "ripgrep is needed (Debian: apt-get install ripgrep)"
[[ $(node -p 'process.versions.node.split(".")[0]') == 20 ]] || fail "code-server 4.100.3 needs Node.js 20"
headers=$(dirname "$(dirname "$(node -p process.execPath)")")
[[ -d $headers/include/node ]] || fail "the headers of Node.js are needed: $headers/include/node is missing"

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/code-server
# A script of node-pty asks whether it may install node-gyp.
export npm_config_nodedir=$headers npm_config_yes=true
install=(npm install --ignore-scripts --omit=dev --no-audit --no-fund --loglevel error)
compile=(npm rebuild --loglevel error)

mkdir -p "$folder"
"${install[@]}" --prefix "$folder" code-server@4.100.3

cd "$folder"
"${compile[@]}" argon2

cd node_modules/code-server/lib/vscode
"${install[@]}"
"${compile[@]}" @vscode/spdlog native-watchdog node-pty
mkdir -p node_modules/@vscode/ripgrep/bin
ln -sf "$(command -v rg)" node_modules/@vscode/ripgrep/bin/rg
# Parts of VS Code look for its modules in the archive that the desktop's are packed in.
ln -sfn node_modules node_modules.asar

cd extensions
"${install[@]}"
