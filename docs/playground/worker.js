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

// Python, and whether it came with its modules.
async function python() {
  try {
    return [await loadPyodide({ _loadSnapshot: await memory() }), true];
  } catch (problem) {
    console.warn(`The snapshot is not used: ${problem}`);
    return [await loadPyodide(), false];
  }
}

async function start() {
  const files = Promise.all([bytes("packages.zip"), bytes("in_browser.py")]);
  const [running, whole] = await python();

  // A snapshot holds the modules that the first answer needs, but no files.
  let unpacked;
  async function unpack() {
    const [packages, code] = await files;
    running.unpackArchive(packages, "zip", { extractDir: "/packages" });
    running.FS.writeFile("/packages/in_browser.py", new Uint8Array(code));
    running.runPython("import importlib, sys; sys.path.insert(0, '/packages'); importlib.invalidate_caches()");
  }
  const imported = () => (unpacked ??= unpack());
  if (!whole) await imported();
  const accumlint = running.pyimport("in_browser");
  return async (ask, text) => {
    if (ask === "mend") await imported();
    try {
      return accumlint[ask](text);
    } catch (problem) {
      if (unpacked || problem.type !== "ModuleNotFoundError") throw problem;
      await imported();
      return accumlint[ask](text);
    }
  };
}

const started = start();
started.then(
  () => postMessage({ ready: true }),
  (problem) => postMessage({ dead: String(problem) }),
);

onmessage = async ({ data }) => {
  const answered = await started;
  try {
    postMessage({ id: data.id, answer: JSON.parse(await answered(data.ask, data.code)) });
  } catch (problem) {
    // An error of Python's leaves it usable; anything else (a full stack, no memory) ends it.
    const dead = problem.constructor?.name !== "PythonError";
    postMessage(dead ? { dead: String(problem) } : { id: data.id, failed: String(problem) });
  }
};
