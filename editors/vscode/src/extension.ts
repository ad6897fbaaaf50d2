// The client of `accumlint server`, and what an editor can offer besides findings.
import { basename } from "node:path";
import * as vscode from "vscode";
import { LanguageClient, type LanguageClientOptions } from "vscode-languageclient/node";
import { advice, candidates, choose, type Launch } from "./launch";
import { type Answer, WindowPanel } from "./window";

const SELECTOR = [
  { language: "python", scheme: "file" },
  { language: "python", scheme: "untitled" },
  { language: "python", notebook: "jupyter-notebook" },
];

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const session = new Session(context.extensionPath);
  const panel = new WindowPanel((uri, line) => session.page(uri, line));
  context.subscriptions.push(
    session,
    panel,
    vscode.commands.registerCommand("accumlint.restart", () => session.restart()),
    vscode.commands.registerCommand("accumlint.showWindow", (uri?: string, line?: number) => {
      const place = placeOf(uri, line);
      return place && panel.show(place.uri, place.line);
    }),
    vscode.commands.registerCommand("accumlint.prove", (uri?: string, line?: number) => {
      const place = placeOf(uri, line);
      return place && session.prove(place.uri, place.line);
    }),
    vscode.languages.registerCodeActionsProvider("python", { provideCodeActions: more }),
    vscode.workspace.onDidChangeConfiguration((change) => {
      const restarting = ["path", "args", "minConfidence"];
      if (restarting.some((key) => change.affectsConfiguration(`accumlint.${key}`))) {
        void session.restart();
      }
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(() => session.restart()),
  );
  // The Python extension may be installed later, or enabled when the workspace is trusted.
  let followed = false;
  const follow = async () => {
    const python = followed ? undefined : await pythonExtension();
    if (!python || followed) return false;
    followed = true;
    const { onDidChangeActiveEnvironmentPath: onDidChange } = python.environments;
    context.subscriptions.push(onDidChange(() => session.restart()));
    return true;
  };
  context.subscriptions.push(
    vscode.extensions.onDidChange(async () => {
      if (await follow()) await session.restart();
    }),
  );
  await follow();
  await session.restart();
}

/** The running server, and the command that started it. */
class Session implements vscode.Disposable {
  private readonly log = vscode.window.createOutputChannel("accumlint", { log: true });
  private readonly files = vscode.workspace.createFileSystemWatcher(
    "**/{accumlint,pyproject}.toml",
  );
  private client: LanguageClient | undefined;
  private launch: Launch | undefined;
  private turn = Promise.resolve();

  /** Nothing is imported from the folder in which a server starts, so it is never the workspace: `home`. */
  constructor(private readonly home: string) {}

  /** Ends the server and starts one; one restart after the other. */
  restart(): Promise<void> {
    this.turn = this.turn
      .then(() => this.stop())
      .then(() => this.start())
      .catch((problem) => this.log.error(problem));
    return this.turn;
  }

  async page(uri: vscode.Uri, line: number): Promise<Answer> {
    if (!this.client?.isRunning()) return { problem: "accumlint is not running" };
    const asked = { command: "accumlint.page", arguments: [uri.toString(), line] };
    return this.client.sendRequest<Answer>("workspace/executeCommand", asked);
  }

  /** Runs `accumlint confirm` on a line of a saved file, in a terminal. */
  async prove(uri: vscode.Uri, line: number): Promise<void> {
    const document = vscode.workspace.textDocuments.find(
      (d) => d.uri.toString() === uri.toString(),
    );
    if (uri.scheme !== "file" || (document?.isDirty && !(await document.save()))) {
      void vscode.window.showInformationMessage("accumlint: only a saved Python file can be run");
      return;
    }
    if (!vscode.workspace.isTrusted) return;
    if (!this.launch) {
      void vscode.window.showInformationMessage("accumlint is not running");
      return;
    }
    const { command, args } = this.launch;
    const name = `Prove ${basename(uri.fsPath)}:${line}`;
    const run = new vscode.ProcessExecution(
      command,
      [...args, "confirm", `${uri.fsPath}:${line}`, ...settings()],
      { cwd: this.home },
    );
    const scope = vscode.workspace.getWorkspaceFolder(uri) ?? vscode.TaskScope.Workspace;
    const task = new vscode.Task({ type: "process" }, scope, name, "accumlint", run, []);
    task.presentationOptions = { reveal: vscode.TaskRevealKind.Always, clear: true, echo: false };
    await vscode.tasks.executeTask(task);
  }

  dispose(): void {
    void this.stop();
    this.files.dispose();
    this.log.dispose();
  }

  private async start(): Promise<void> {
    const path = vscode.workspace.getConfiguration("accumlint").get("path", "").trim();
    const launches = candidates(path, await interpreter());
    const { chosen, refusals } = await choose(launches, settings(), this.home);
    for (const { launch, reason } of refusals) this.log.warn(`${launch.origin}: ${reason}`);
    this.launch = chosen;
    if (!chosen) {
      void this.complain(advice(refusals, vscode.workspace.isTrusted));
      return;
    }
    const args = [...chosen.args, "server", ...settings()];
    this.log.info(`starting ${chosen.command} ${args.join(" ")} (${chosen.origin})`);
    const server = { command: chosen.command, args, options: { cwd: this.home } };
    this.client = new LanguageClient("accumlint", "accumlint", server, this.options());
    await this.client.start();
  }

  private async stop(): Promise<void> {
    const { client } = this;
    this.client = this.launch = undefined;
    await client?.dispose().catch((problem) => this.log.warn(problem));
  }

  private options(): LanguageClientOptions {
    return {
      documentSelector: SELECTOR,
      outputChannel: this.log,
      synchronize: { fileEvents: this.files },
      middleware: {
        provideHover: async (document, position, token, next) => {
          const hover = await next(document, position, token);
          const line = (hover?.range?.start ?? position).line + 1;
          if (hover) hover.contents.unshift(links(document.uri, line));
          return hover;
        },
      },
    };
  }

  private async complain(message: string): Promise<void> {
    const answer = await vscode.window.showErrorMessage(message, "Open settings", "Show log");
    if (answer === "Show log") this.log.show();
    if (answer === "Open settings") {
      await vscode.commands.executeCommand("workbench.action.openSettings", "accumlint.path");
    }
  }
}

/** The settings as the command line has them. */
function settings(): string[] {
  const held = vscode.workspace.getConfiguration("accumlint");
  const least = held.get("minConfidence", "");
  const confidence = least ? ["--config", `min-confidence=${least}`] : [];
  return [...confidence, ...held.get<string[]>("args", [])];
}

/** A place that a command was given, or where the cursor is; lines from 1. */
function placeOf(uri?: string, line?: number): { uri: vscode.Uri; line: number } | undefined {
  if (uri !== undefined && line !== undefined) return { uri: vscode.Uri.parse(uri), line };
  const editor = vscode.window.activeTextEditor;
  return editor && { uri: editor.document.uri, line: editor.selection.active.line + 1 };
}

/** Cells and unsaved texts are no files that could be run. */
function mayProve(uri: vscode.Uri): boolean {
  return vscode.workspace.isTrusted && uri.scheme === "file";
}

/** Links to what can be done about a finding. The server's own text is trusted with no command. */
function links(uri: vscode.Uri, line: number): vscode.MarkdownString {
  const link = (title: string, command: string) =>
    `[${title}](command:${command}?${encodeURIComponent(JSON.stringify([uri.toString(), line]))})`;
  const offered = [link("Show this window", "accumlint.showWindow")];
  if (mayProve(uri)) offered.push(link("Prove it", "accumlint.prove"));
  const text = new vscode.MarkdownString(offered.join(" · "));
  text.isTrusted = { enabledCommands: ["accumlint.showWindow", "accumlint.prove"] };
  return text;
}

/** The same as actions on each line that has a finding. */
function more(
  document: vscode.TextDocument,
  _: vscode.Range,
  { diagnostics }: vscode.CodeActionContext,
): vscode.CodeAction[] {
  const found = diagnostics.filter(({ source, code }) => source === "accumlint" && code);
  return [...new Set(found.map(({ range }) => range.start.line + 1))].flatMap((line) => {
    const action = (title: string, command: string) => {
      const made = new vscode.CodeAction(title, vscode.CodeActionKind.QuickFix);
      made.command = { title, command, arguments: [document.uri.toString(), line] };
      return made;
    };
    const show = action("Show this window", "accumlint.showWindow");
    return mayProve(document.uri) ? [show, action("Prove it", "accumlint.prove")] : [show];
  });
}

/** The part of the Python extension's API that is used. */
interface PythonExtension {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(path: {
      path: string;
    }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

async function pythonExtension(): Promise<PythonExtension | undefined> {
  const extension = vscode.extensions.getExtension<PythonExtension>("ms-python.python");
  try {
    return await extension?.activate();
  } catch {
    return undefined;
  }
}

/** The interpreter that the Python extension has selected; it may come from the workspace, which must be trusted. */
async function interpreter(): Promise<string | undefined> {
  const python = vscode.workspace.isTrusted ? await pythonExtension() : undefined;
  if (!python) return undefined;
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const active = python.environments.getActiveEnvironmentPath(folder);
  const environment = await python.environments.resolveEnvironment(active);
  return environment?.executable.uri?.fsPath;
}
