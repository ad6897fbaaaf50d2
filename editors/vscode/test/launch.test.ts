// The order in which commands are tried, and what is said when none can serve.
import assert from "node:assert/strict";
import { test } from "node:test";
import { advice, candidates, choose, type Launch } from "../src/launch";

const node = (code: string, origin = "a script"): Launch => ({
  command: process.execPath,
  args: ["-e", code],
  origin,
});
const absent: Launch = { command: "no-such-command-anywhere", args: [], origin: "the PATH" };

test("the selected interpreter comes before the PATH", () => {
  assert.deepEqual(
    candidates("", "/venv/bin/python").map(({ command, args }) => [command, ...args].join(" ")),
    ["/venv/bin/python -m accumlint", "accumlint"],
  );
  assert.equal(candidates("", undefined).length, 1);
});

test("a path that was set is the only candidate", () => {
  const found = candidates("/opt/accumlint", "/venv/bin/python");
  assert.deepEqual(
    found.map(({ command }) => command),
    ["/opt/accumlint"],
  );
});

test("the first that ends well is chosen, and is given the settings", async () => {
  const asks = "process.exit(process.argv.slice(1).join(' ') === 'server --isolated' ? 0 : 3)";
  const failing = node("console.error('a\\nNo module named accumlint'); process.exit(1)");
  const { chosen, refusals } = await choose([absent, failing, node(asks)], ["--isolated"], ".");
  assert.equal(chosen?.args[1], asks);
  assert.deepEqual(
    refusals.map(({ reason }) => reason),
    ["not found", "No module named accumlint"],
  );
});

test("a server that waits for words is told that there are none", async () => {
  const { chosen } = await choose([node("process.stdin.resume()")], [], ".");
  assert.ok(chosen);
});

test("the advice names what was tried and the interpreter to install into", async () => {
  const { refusals } = await choose([node("process.exit(1)", "the interpreter"), absent], [], ".");
  const told = advice(refusals, true);
  assert.match(told, /the PATH: not found/);
  assert.doesNotMatch(told, /trust/);
  assert.match(advice(refusals, false), /trust this workspace/);
  assert.ok(told.includes(`${process.execPath} -m pip install -e '.[lsp]'`));
});
