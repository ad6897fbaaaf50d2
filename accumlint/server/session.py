"""One session with an editor: what is open is checked a moment after it was changed."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import ServerTextPosition, ServerTextRange

from accumlint import __version__, config
from accumlint.common.place import Place
from accumlint.common.problem import Kind, Misuse, Problem
from accumlint.config import Options
from accumlint.diagnostics.results import baseline
from accumlint.diagnostics.results.report import Checked, Report
from accumlint.server import protocol
from accumlint.server.open_file import Opened, notebook, script

# Seconds without a key stroke after which a text is checked.
PAUSE = 0.05
T = TypeVar("T")
_STACK = 256 * 1024 * 1024
_WARM = "for i, x in enumerate(loader):\n    model(x).mean().backward()\n    optimizer.step()\n"


class Session(LanguageServer):
    """The open files with what was last found in them, and the checks that are to come."""

    def __init__(self, asked: Options) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            "accumlint",
            __version__,
            notebook_document_sync=types.NotebookDocumentSyncOptions(
                [
                    types.NotebookDocumentFilterWithCells(
                        cells=[types.NotebookCellLanguage("python")], notebook="jupyter-notebook"
                    )
                ]
            ),
        )
        self._asked = asked
        self.opened: dict[str, Opened] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        # Checks recurse deeply, and share caches: one thread with much stack makes them, one after the other.
        before = threading.stack_size(_STACK)
        self._checks = ThreadPoolExecutor(1, "accumlint")
        self._checks.submit(_warm)
        threading.stack_size(before)

    def soon(self, uri: str) -> None:
        """Checks a document or a notebook when nothing has changed for a moment."""
        if before := self._waiting.pop(uri, None):
            before.cancel()
        self._waiting[uri] = asyncio.ensure_future(self._check(uri))

    def close(self, uri: str) -> None:
        """Forgets a document or a notebook, and takes its findings away."""
        if before := self._waiting.pop(uri, None):
            before.cancel()
        if opened := self.opened.pop(uri, None):
            self._publish(replace(opened, checked=Checked("")))

    def anew(self) -> None:
        """Checks everything again, since settings or other files may have changed."""
        config.forget()
        baseline.load.cache_clear()
        for uri in list(self.opened):
            self.soon(uri)

    def holding(self, uri: str) -> Opened | None:
        """What is open under a URI, a cell's included."""
        return next((held for held in self.opened.values() if uri in held.uris), None)

    def at(self, uri: str, asked: types.Range) -> tuple[Opened | None, list[Report]]:
        """The findings that a range of a document touches."""
        opened = self.holding(uri)
        if opened is None:
            return None, []
        found = (
            report
            for report in opened.reports(uri)
            if _touch(self.range(uri, report.mark.place), asked)
        )
        return opened, list(found)

    def range(self, uri: str, place: Place) -> types.Range:
        """A place in the units that the client counts in."""
        return self.workspace.get_text_document(uri).range_to_client_units(
            ServerTextRange(
                ServerTextPosition(place.line - 1, place.column - 1),
                ServerTextPosition(place.end_line - 1, place.end_column - 1),
            )
        )

    async def _check(self, uri: str) -> None:
        await asyncio.sleep(PAUSE if uri in self.opened else 0)
        opened = self._read(uri)
        # What was found last stays in sight until there is something newer, but no edit is made of it.
        if before := self.opened.get(uri):
            opened = replace(opened, checked=before.checked, is_stale=True)
        self.opened[uri] = opened
        try:
            checked = await self._apart(lambda: opened.check(self._asked))
        except Misuse as problem:
            self._say(f"accumlint: {problem}")
            return
        # A fault of ours in one text ends neither the session nor the editor.
        except Exception:  # noqa: BLE001
            self._say("accumlint failed on this file, which is its own fault; please report it")
            log = types.LogMessageParams(types.MessageType.Error, traceback.format_exc())
            self.window_log_message(log)
            return
        unread = next((p for p in checked.problems if p.kind is Kind.UNREADABLE), None)
        if unread is None:
            self.opened[uri] = opened = replace(opened, checked=checked, is_stale=False)
        self._publish(opened, unread)

    async def page(self, uri: str, line: int) -> dict[str, str]:
        """The loops that a line (from 1) belongs to as an HTML `page`, or the `problem` that there is none."""
        opened = self.holding(uri)
        if opened is None:
            return {"problem": "accumlint: only what is open can be shown"}
        current = self._read(opened.uri)
        try:
            return {"page": await self._apart(lambda: current.page(line, self._asked))}
        except Misuse as problem:
            return {"problem": f"accumlint: {problem}"}

    async def _apart(self, work: Callable[[], T]) -> T:
        """Does work in the thread of the checks."""
        return await asyncio.get_running_loop().run_in_executor(self._checks, work)

    def _read(self, uri: str) -> Opened:
        """A document or a notebook as it is now."""
        path = to_fs_path(uri) or uri
        book = self.workspace.get_notebook_document(notebook_uri=uri)
        if book is None:
            return script(uri, path, self._text(uri))
        code = [cell.document for cell in book.cells if cell.kind == types.NotebookCellKind.Code]
        texts = [(cell, self._text(cell)) for cell in code]
        return notebook(uri, path, texts)

    def _text(self, uri: str) -> str:
        """The text of an open document. pygls would read any other from the disk, a device as well."""
        document = self.workspace.text_documents.get(unquote(uri))
        return document.source if document else ""

    def _publish(self, opened: Opened, unread: Problem | None = None) -> None:
        """Sends the findings, and in front of them what kept the text from being read."""
        for number, uri in enumerate(opened.uris):
            found = protocol.diagnostics(opened, uri, self.range)
            if unread and number == 0:
                line = 1 if opened.cells else unread.line or 1
                found.insert(
                    0, protocol.unread(unread, self.range(uri, Place(line, 1, line + 1, 1)))
                )
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def _say(self, message: str) -> None:
        self.window_show_message(types.ShowMessageParams(types.MessageType.Error, message))


def session(asked: Options) -> Session:
    """A server that is ready to be started; what is asked of it overrules the settings of folders."""
    server = Session(asked)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def _(params: types.DidOpenTextDocumentParams) -> None:
        server.soon(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def _(params: types.DidChangeTextDocumentParams) -> None:
        server.soon(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def _(params: types.DidCloseTextDocumentParams) -> None:
        server.close(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def _(params: types.DidSaveTextDocumentParams) -> None:
        server.anew()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def _(params: types.DidChangeWatchedFilesParams) -> None:
        server.anew()

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def _(params: types.DidOpenNotebookDocumentParams) -> None:
        server.soon(params.notebook_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def _(params: types.DidChangeNotebookDocumentParams) -> None:
        server.soon(params.notebook_document.uri)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def _(params: types.DidCloseNotebookDocumentParams) -> None:
        server.close(params.notebook_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def _(params: types.HoverParams) -> types.Hover | None:
        uri, point = params.text_document.uri, params.position
        _, found = server.at(uri, types.Range(point, point))
        return protocol.hover(found, server.range(uri, found[0].mark.place)) if found else None

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    def _(params: types.CodeActionParams) -> Iterable[types.CodeAction]:
        opened, found = server.at(params.text_document.uri, params.range)
        if opened is None or opened.is_stale:
            return []
        return list(protocol.actions(opened, found, server.range))

    @server.command("accumlint.page")
    async def _(uri: str, line: int) -> dict[str, str]:
        return await server.page(uri, line)

    return server


def _touch(one: types.Range, other: types.Range) -> bool:
    return one.start <= other.end and other.start <= one.end


def _warm() -> None:
    """Imports what a check needs, before there is one."""
    script("", "/train.py", _WARM).check()
