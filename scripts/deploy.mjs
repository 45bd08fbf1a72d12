// `npm run deploy`: applies the D1 migrations and then deploys the Worker, to the Cloudflare
// account that wrangler is logged in to. Both commands get the arguments, for example: npm run
// deploy -- --env eu1
import { wrangler } from "./instance.mjs";
import { commit, release, run } from "./lib.mjs";

// wrangler looks for the folder of static assets before it runs its build command.
if (release === null) {
  await (await import("./build.mjs")).build();
  await (await import("./agent-files.mjs")).offerOwnAgent();
}
const options = process.argv.slice(2);
run(wrangler, ["d1", "migrations", "apply", "DB", "--remote", ...options], { stdio: "inherit" });
// With EDGE:cloudflare, the Worker trusts the header CF-Connecting-IP for the client's address.
run(wrangler, ["deploy", "--var", "EDGE:cloudflare", "--var", `COMMIT:${commit()}`, ...options], { stdio: "inherit" });
