// Bundles the extension, and puts the licences of what the bundle holds beside it.
import { copyFileSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const { metafile } = await build({
  entryPoints: ["src/extension.ts"],
  bundle: true,
  platform: "node",
  target: "node20",
  external: ["vscode"],
  minify: true,
  metafile: true,
  outfile: "dist/extension.js",
});
const packages = new Set(
  Object.keys(metafile.inputs).flatMap(
    (path) => path.match(/.*node_modules\/(@[^/]+\/)?[^/]+/) ?? [],
  ),
);
const licences = [...packages]
  .filter(Boolean)
  .sort()
  .flatMap((folder) => {
    if (!folder.includes("node_modules")) return [];
    const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
    if (!file) throw new Error(`${folder} has no licence`);
    return [
      `${folder.replace(/.*node_modules\//, "")}\n\n${readFileSync(`${folder}/${file}`, "utf8")}`,
    ];
  });
writeFileSync("dist/licences.txt", licences.join(`\n${"-".repeat(80)}\n\n`));
copyFileSync("../../LICENSE", "LICENSE");
