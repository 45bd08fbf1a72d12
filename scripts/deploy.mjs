// `npm run deploy`: the D1 migrations, then the Worker, to the Cloudflare account that wrangler is logged in to.
// Arguments go to both, for example: npm run deploy -- --env eu1
import { join } from "node:path";
import { root, run } from "./lib.mjs";
import { npmPackages } from "./toolchain.mjs";

await npmPackages();
const wrangler = join(root, "node_modules", ".bin", "wrangler");
const options = process.argv.slice(2);
run(wrangler, ["d1", "migrations", "apply", "DB", "--remote", ...options], { stdio: "inherit" });
run(wrangler, ["deploy", ...options], { stdio: "inherit" });
