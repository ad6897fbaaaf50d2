// Runs accumlint in Python beside the page, so that typing never waits for it.
//
// Messages in: {id, ask, code}, where ask is "look" or "mend". Out: {ready} once, then {id, answer} or {id, failed}.

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function bytes(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  return response.arrayBuffer();
}

async function start() {
  const [python, packages, code] = await Promise.all([
    loadPyodide(),
    bytes("packages.zip"),
    bytes("in_browser.py"),
  ]);
  python.unpackArchive(packages, "zip", { extractDir: "/packages" });
  python.FS.writeFile("/packages/in_browser.py", new Uint8Array(code));
  python.runPython("import sys; sys.path.insert(0, '/packages')");
  return python.pyimport("in_browser");
}

const started = start();
started.then(
  () => postMessage({ ready: true }),
  (problem) => postMessage({ dead: String(problem) }),
);

onmessage = async ({ data }) => {
  const accumlint = await started;
  try {
    const answer = data.ask === "look" ? accumlint.look(data.code) : accumlint.mend(data.code);
    postMessage({ id: data.id, answer: JSON.parse(answer) });
  } catch (problem) {
    // An error of Python's leaves it usable; anything else (a full stack, no memory) ends it.
    const dead = problem.constructor?.name !== "PythonError";
    postMessage(dead ? { dead: String(problem) } : { id: data.id, failed: String(problem) });
  }
};
