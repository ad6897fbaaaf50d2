// Which command starts accumlint.
import { execFile } from "node:child_process";

/** A command that may start accumlint, and where it was found. */
export interface Launch {
  command: string;
  args: string[];
  origin: string;
}

/** A command that was tried, and why it cannot serve. */
export interface Refusal {
  launch: Launch;
  reason: string;
}

/** What to try, the best first; a path that was set is the only one. */
export function candidates(path: string, interpreter: string | undefined): Launch[] {
  if (path) return [{ command: path, args: [], origin: "the setting accumlint.path" }];
  const found: Launch[] = [{ command: "accumlint", args: [], origin: "the PATH" }];
  if (interpreter) {
    const args = ["-m", "accumlint"];
    found.unshift({ command: interpreter, args, origin: "the selected interpreter" });
  }
  return found;
}

/** The first that can serve, with the refusals before it. */
export async function choose(
  launches: Launch[],
  settings: string[],
  cwd: string,
): Promise<{ chosen?: Launch; refusals: Refusal[] }> {
  const refusals: Refusal[] = [];
  for (const launch of launches) {
    const reason = await refusal(launch, settings, cwd);
    if (reason === undefined) return { chosen: launch, refusals };
    refusals.push({ launch, reason });
  }
  return { refusals };
}

/** What was tried, and what to do, in one line. */
export function advice(refusals: Refusal[], isTrusted: boolean): string {
  const tried = refusals.map(({ launch, reason }) => `${launch.origin}: ${reason}`).join("; ");
  const python = refusals.find(({ launch }) => launch.args.length)?.launch.command ?? "python";
  const other = isTrusted
    ? "select another interpreter"
    : "trust this workspace to use the interpreter selected in it";
  return `accumlint cannot start (${tried}). Install it (in a checkout of accumlint: ${python} -m pip install -e '.[lsp]'), ${other}, or set accumlint.path.`;
}

/** Why a command cannot serve. A server that is told nothing ends at once and well. */
function refusal(launch: Launch, settings: string[], cwd: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const args = [...launch.args, "server", ...settings];
    const child = execFile(launch.command, args, { cwd, timeout: 60_000 }, (error, _, stderr) => {
      if (!error) return resolve(undefined);
      if (error.code === "ENOENT") return resolve("not found");
      resolve(stderr.trim().split("\n").at(-1) || error.message);
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end();
  });
}
