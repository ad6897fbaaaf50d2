// Unpacks wheels into one archive, with the bytecode of what the playground imports, and keeps the memory of a Python that
// has imported it: node compile.mjs FOLDER SCRIPT TEXTS
//
// FOLDER/pyodide holds Pyodide, FOLDER/wheels the wheels; FOLDER/packages.zip and FOLDER/snapshot.gz are written. SCRIPT is what
// the playground runs, TEXTS a JSON list of what it is tried on. Only the Python that will read it can make the bytecode.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [folder, script, texts] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide", "pyodide.mjs")));
const python = await loadPyodide();
for (const name of readdirSync(join(folder, "wheels"))) {
  const wheel = new Uint8Array(readFileSync(join(folder, "wheels", name)));
  python.unpackArchive(wheel, "zip", { extractDir: "/packages" });
}
python.FS.writeFile("/home/pyodide/in_browser.py", readFileSync(script));
python.FS.writeFile("/home/pyodide/texts.json", readFileSync(texts));
python.runPython(`
import json, py_compile, shutil, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "/packages")
import in_browser

for text in json.load(open("texts.json")):
    in_browser.look(text)
    in_browser.mend(text)
for module in list(sys.modules.values()):
    if (getattr(module, "__file__", None) or "").startswith("/packages/"):
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(module.__file__, doraise=True, invalidation_mode=mode)
shutil.make_archive("/packages", "zip", "/packages")
`);
const packages = python.FS.readFile("/packages.zip");
writeFileSync(join(folder, "packages.zip"), packages);

// A snapshot is as large as the memory that Pyodide starts with, or it cannot be put back: one text imports what all need.
const kept = await loadPyodide({ _makeSnapshot: true });
const begun = kept._module.HEAP8.length;
kept.unpackArchive(packages, "zip", { extractDir: "/packages" });
kept.FS.writeFile("/packages/in_browser.py", readFileSync(script));
kept.FS.writeFile("/home/pyodide/texts.json", readFileSync(texts));
kept.runPython(`
import gc, json, sys
sys.path.insert(0, "/packages")
import in_browser

in_browser.look(json.load(open("texts.json"))[0])
in_browser.look("")
gc.collect()
`);
if (kept._module.HEAP8.length > begun) throw new Error("the snapshot is too large to be put back");
writeFileSync(join(folder, "snapshot.gz"), gzipSync(kept.makeMemorySnapshot(), { level: 9 }));
process.exit(0);
