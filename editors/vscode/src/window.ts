// The page of a loop's window, beside the code.
import * as vscode from "vscode";

/** What the server answers: the page, or why there is none. */
export type Answer = { page?: string; problem?: string };
export type Ask = (uri: vscode.Uri, line: number) => Promise<Answer>;

/** One panel, which follows the text that it was opened for. */
export class WindowPanel implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;
  private shown: { uri: vscode.Uri; line: number } | undefined;
  private readonly listener: vscode.Disposable;

  constructor(private readonly ask: Ask) {
    // Findings are published after each check of a changed text.
    this.listener = vscode.languages.onDidChangeDiagnostics(({ uris }) => {
      const { shown } = this;
      if (shown && uris.some((uri) => uri.toString() === shown.uri.toString())) void this.follow();
    });
  }

  /** Shows the loops at a line (from 1), or says why not. */
  async show(uri: vscode.Uri, line: number): Promise<void> {
    const { page, problem } = await this.ask(uri, line);
    if (page === undefined) {
      void vscode.window.showInformationMessage(problem ?? "accumlint: there is nothing to show");
      return;
    }
    this.shown = { uri, line };
    this.panel ??= this.opened();
    this.panel.title = `Window of ${uri.path.split("/").at(-1)}`;
    this.panel.webview.html = page;
    this.panel.reveal(undefined, true);
  }

  /** Shows the same loops of a newer text; a text that cannot be read leaves the page. */
  private async follow(): Promise<void> {
    const { shown, panel } = this;
    if (!shown || !panel) return;
    const editor = vscode.window.visibleTextEditors.find(
      ({ document }) => document.uri.toString() === shown.uri.toString(),
    );
    for (const line of new Set([
      editor ? editor.selection.active.line + 1 : shown.line,
      shown.line,
    ])) {
      const { page } = await this.ask(shown.uri, line);
      if (page === undefined) continue;
      shown.line = line;
      if (panel.webview.html !== page) panel.webview.html = page;
      return;
    }
  }

  private opened(): vscode.WebviewPanel {
    // The page needs no script, and its own policy lets it load nothing.
    const panel = vscode.window.createWebviewPanel(
      "accumlint.window",
      "Window",
      { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true },
      { enableScripts: false, localResourceRoots: [], enableFindWidget: true },
    );
    panel.onDidDispose(() => {
      this.panel = this.shown = undefined;
    });
    return panel;
  }

  dispose(): void {
    this.listener.dispose();
    this.panel?.dispose();
  }
}
