// Runs accumlint in Python beside the page, so that typing never waits for it.
//
// Messages in: {id, ask, code}, where ask is "look" or "mend". Out: {ready} once, then {id, answer} or {id, failed}.

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function bytes(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: ${response.status}`);
  return response.arrayBuffer();
}

// The memory of a Python that has imported accumlint: with it, a start takes a fraction of the time.
async function memory() {
  const packed = new Blob([await bytes("snapshot.gz")]).stream();
  return new Uint8Array(await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

async function python() {
  try {
    return await loadPyodide({ _loadSnapshot: await memory() });
  } catch (problem) {
    console.warn(`The snapshot is not used: ${problem}`);
    return loadPyodide();
  }
}

async function start() {
  const [running, packages, code] = await Promise.all([
    python(),
    bytes("packages.zip"),
    bytes("in_browser.py"),
  ]);
  // A snapshot holds modules, not files.
  running.unpackArchive(packages, "zip", { extractDir: "/packages" });
  running.FS.writeFile("/packages/in_browser.py", new Uint8Array(code));
  running.runPython("import importlib, sys; sys.path.insert(0, '/packages'); importlib.invalidate_caches()");
  return running.pyimport("in_browser");
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
