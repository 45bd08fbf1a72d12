// `npm run deploy`: the D1 migrations, then the Worker, to the Cloudflare account that wrangler is logged in to.
// Arguments go to both, for example: npm run deploy -- --env eu1
import { build } from "./build.mjs";
import { wrangler } from "./instance.mjs";
import { commit, run } from "./lib.mjs";
import { npmPackages } from "./toolchain.mjs";

await npmPackages();
// wrangler looks for the folder of static assets before it runs its build command.
await build();
const options = process.argv.slice(2);
run(wrangler, ["d1", "migrations", "apply", "DB", "--remote", ...options], { stdio: "inherit" });
// Behind Cloudflare its header CF-Connecting-IP is the client's address. Nowhere else is it believed.
run(wrangler, ["deploy", "--var", "EDGE:cloudflare", "--var", `COMMIT:${commit()}`, ...options], { stdio: "inherit" });
