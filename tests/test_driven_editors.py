"""What the editors themselves show: VS Code with the extension, driven in a browser, and Neovim."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from documents import BROWSER
from helpers import LOOP, ROOT

pytestmark = [pytest.mark.editors, pytest.mark.long]
# playwright need not be installed, and then has no types.
Page = Any
PLAIN = LOOP.replace("  # error: ACC102", "")
DIVIDED = PLAIN.replace("loss.b", "(loss / accumulation_steps).b")
PACKAGE = ROOT / "editors" / "vscode" / "accumlint.vsix"
BUILT = ROOT / "build" / "code-server" / "node_modules" / ".bin" / "code-server"
NEOVIM = shutil.which("nvim") or ""
# What the real extension for Python answers when it is asked which interpreter is selected.
SELECTED = """\
exports.activate = () => ({ environments: {
  getActiveEnvironmentPath: () => ({ path: "selected" }),
  resolveEnvironment: async () => ({ executable: { uri: require("vscode").Uri.file(PYTHON) } }),
  onDidChangeActiveEnvironmentPath: () => ({ dispose() {} }),
} });
"""
MANIFEST = {
    "name": "python",
    "publisher": "ms-python",
    "version": "0.0.1",
    "engines": {"vscode": "^1.0.0"},
    "main": "main.js",
    "capabilities": {"untrustedWorkspaces": {"supported": True}},
}
SETTINGS = {
    "security.workspace.trust.startupPrompt": "never",
    "terminal.integrated.gpuAcceleration": "off",
    "workbench.colorTheme": "Default Dark Modern",
    "workbench.startupEditor": "none",
}


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """A file with a defect, in a small repository."""
    file = tmp_path / "repository" / "train.py"
    file.parent.mkdir()
    file.write_text(PLAIN)
    return file


# VS Code


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where VS Code is served with the extension and a selected interpreter that has accumlint."""
    server = shutil.which("code-server") or (str(BUILT) if BUILT.exists() else "")
    if not server:
        pytest.skip(f"code-server is neither on the PATH nor at {BUILT}")
    if not PACKAGE.exists():
        pytest.skip("the extension is not packaged: `npm ci && npm run package` in editors/vscode")
    python = tmp_path / "python.vsix"
    with zipfile.ZipFile(python, "w") as archive:
        archive.writestr("extension/package.json", json.dumps(MANIFEST))
        selected = SELECTED.replace("PYTHON", json.dumps(sys.executable))
        archive.writestr("extension/main.js", selected)
    data = tmp_path / "data"
    (data / "User").mkdir(parents=True)
    (data / "User" / "settings.json").write_text(json.dumps(SETTINGS))
    command = [
        server,
        "--user-data-dir",
        str(data),
        "--extensions-dir",
        str(tmp_path / "installed"),
    ]
    # Only the selected interpreter can find accumlint.
    paths = [os.path.dirname(shutil.which("node") or sys.executable), "/usr/bin", "/bin"]
    environment = {**os.environ, "PATH": ":".join(paths), "XDG_CONFIG_HOME": str(tmp_path)}
    installing = [
        part for package in (python, PACKAGE) for part in ("--install-extension", package)
    ]
    subprocess.run([*command, *installing], env=environment, check=True, timeout=120)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command += ["--bind-addr", f"127.0.0.1:{port}", "--auth", "none", "--disable-telemetry"]
    command += ["--disable-update-check"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await_port(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(30)


def await_port(port: int) -> None:
    for _ in range(300):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    pytest.fail("code-server does not answer")


@pytest.fixture
def page() -> Iterator[Page]:
    if not BROWSER:
        pytest.skip("Chromium is not installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1400, "height": 850})
        opened.set_default_timeout(120_000)
        yield opened
        browser.close()


@pytest.mark.torch
@pytest.mark.browser
def test_vscode(page: Page, address: str, train: Path, tmp_path: Path) -> None:
    shots = Path(os.environ.get("ACCUMLINT_SHOTS", tmp_path))

    def shot(name: str) -> None:
        page.screenshot(path=shots / f"vscode-{name}.png")

    # In a workspace that is not trusted nothing is started that could come from it.
    page.goto(f"{address}/?folder={train.parent}")
    page.dblclick(".explorer-folders-view >> text=train.py")
    told = page.locator(".notification-toast:has-text('accumlint cannot start')")
    told.wait_for()
    assert "the PATH: not found" in told.inner_text()
    assert "-m pip install -e '.[lsp]'" in told.inner_text()
    page.wait_for_timeout(1000)
    shot("untrusted")
    told.locator(".codicon-notifications-clear").click()

    # Once it is trusted, the selected interpreter is asked.
    page.click(".statusbar-item:has-text('Restricted Mode')")
    page.locator(".workspace-trust-editor a.monaco-button:text-is('Trust')").click()
    page.locator(".tab:has-text('train.py')").click()
    page.wait_for_selector(".squiggly-error")
    flagged = page.locator(".view-line:has-text('.backward') >> text=backward")
    flagged.hover()
    hover = page.locator(".monaco-hover:has-text('ACC102')")
    hover.locator("text=step applies g1 + g2 + g3 + g4").wait_for()
    # It fades in.
    page.wait_for_timeout(500)
    shot("hover")

    hover.locator("a:text-is('Show this window')").click()
    inner = page.frame_locator("iframe.webview").frame_locator("#active-frame")
    inner.locator("article svg").first.wait_for()
    assert inner.locator(".verdict").inner_text() == "ACC102"
    # It is as dark as the editor, though the system prefers light.
    assert inner.locator("body").evaluate("e => getComputedStyle(e).colorScheme") == "dark"
    page.keyboard.press("Escape")
    page.mouse.move(600, 700)
    hover.wait_for(state="hidden")
    shot("window")

    flagged.click()
    page.keyboard.press("Control+.")
    page.locator(".action-widget").locator("text=Ignore ACC102 here").wait_for()
    shot("actions")
    page.keyboard.press("Enter")
    page.locator(".view-line:has-text('(loss / accumulation_steps).backward')").wait_for()
    page.locator(".squiggly-error").wait_for(state="detached")
    # The window follows the text.
    inner.locator(".verdict.good:text-is('nothing found')").wait_for()
    page.keyboard.press("Control+s")
    for _ in range(100):
        if train.read_text() == DIVIDED:
            break
        page.wait_for_timeout(100)
    assert train.read_text() == DIVIDED
    shot("fixed")

    # What is proved is the text in sight, which is saved first.
    page.keyboard.press("Control+z")
    page.wait_for_selector(".squiggly-error")
    page.keyboard.press("F1")
    page.keyboard.type("accumlint: Prove it")
    page.locator(".quick-input-list .focused:has-text('Prove it')").wait_for()
    page.keyboard.press("Enter")
    page.locator(".xterm-rows:has-text('1 confirmed')").wait_for()
    shot("proved")
    assert train.read_text() == PLAIN


# Neovim

# What `vim.lsp.config` and `vim.lsp.enable` do with these settings, for releases before 0.11.
BEFORE = """\
if not vim.lsp.config then
  local held = {}
  vim.lsp.config = function(name, config) held[name] = config end
  vim.lsp.enable = function(name)
    vim.api.nvim_create_autocmd('FileType', { pattern = held[name].filetypes, callback = function(event)
      local settings = { name = name, cmd = held[name].cmd, root_dir = vim.fn.getcwd() }
      vim.lsp.buf_attach_client(event.buf, vim.lsp.start_client(settings))
    end })
  end
end
"""
SESSION = """\
local told = {}
local function await(what) assert(vim.wait(60000, what, 50), 'nothing came') end
await(function() return #vim.diagnostic.get(0) == 1 end)
local found = vim.diagnostic.get(0)[1]
told.code, told.line = found.code, found.lnum + 1
local place = { line = found.lnum, character = found.col }
local function ask(method, more)
  local asked = { textDocument = { uri = vim.uri_from_bufnr(0) }, position = place,
    range = { start = place, ['end'] = place }, context = { diagnostics = {} } }
  for _, answer in pairs(vim.lsp.buf_request_sync(0, method, asked, 60000)) do return answer.result end
end
told.hover = ask('textDocument/hover').contents.value
vim.lsp.util.apply_workspace_edit(ask('textDocument/codeAction')[1].edit, 'utf-16')
await(function() return #vim.diagnostic.get(0) == 0 end)
vim.cmd('write')
vim.fn.writefile({ vim.fn.json_encode(told) }, 'told.json')
vim.cmd('quitall!')
"""


def test_neovim(train: Path) -> None:
    if not NEOVIM:
        pytest.skip("Neovim is not installed")
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"## Neovim\n.*?```\n(.*?)```", page, re.DOTALL)
    folder = train.parent
    (folder / "init.lua").write_text(BEFORE + settings)
    (folder / "session.lua").write_text(SESSION)
    command = [NEOVIM, "--headless", "-u", "init.lua", "-i", "NONE", "-n", "train.py"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [*command, "-c", "luafile session.lua", "-c", "cquit"],
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    told = json.loads((folder / "told.json").read_text())
    assert (told["code"], told["line"]) == ("ACC102", 11)
    assert "step applies g1 + g2 + g3 + g4" in told["hover"]
    assert train.read_text() == DIVIDED
