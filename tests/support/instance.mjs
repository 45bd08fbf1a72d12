// Serves the built Worker until SIGTERM, with STATE_DIR, PORT and the variables of the environment.
// PROJECT names the folder with the Worker, if it is not the checkout.
// Tests start many instances, so this is `npm start` without the demo, the checks and the builds.
import { startInstance } from "../../scripts/instance.mjs";

const { STATE_DIR: stateDir, PORT: port, PROJECT: project } = process.env;
let instance = null;
let isEnding = false;
const end = async (status) => {
  if (isEnding) return;
  isEnding = true;
  await instance?.stop();
  process.exit(status);
};
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => void end(0));
instance = await startInstance({ stateDir, port: Number(port), project, onExit: () => void end(1) });
console.log("Ctrl-C ends it.");
