// Asks the search of a built site, in the site's own worker: prints a list of page addresses for each query, as JSON.
const fs = require("fs");
const path = require("path");

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readdirSync(workers).find((name) => /^search\..*\.min\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json")));

// What a worker has in a browser.
let receive;
const waiting = [];
Object.assign(globalThis, {
  self: globalThis,
  addEventListener: (_, listener) => (receive = listener),
  postMessage: (message) => waiting.shift()(message),
});
(0, eval)(fs.readFileSync(path.join(workers, worker), "utf8"));

// The numbers are those of the theme's messages: set up, and query.
const ask = (type, data) =>
  new Promise((resolve) => {
    waiting.push(resolve);
    receive({ data: { type, data } });
  });

(async () => {
  await ask(0, { config: index.config, docs: index.docs, options: { suggest: false } });
  const answers = {};
  for (const query of queries) {
    const { data } = await ask(2, query);
    answers[query] = data.items.map(([first]) => first.location);
  }
  console.log(JSON.stringify(answers));
})();
