// Finds the programs that examples/ needs on PATH. Installs Debian's packages if a program is
// missing.
import { debianPackages, programs } from "./toolchain.mjs";
import { fail, output } from "./lib.mjs";

const NEEDS = "the tests of examples/ need";

/** Finds a Python with httpx: on PATH, or Debian's Python. */
async function pythonWithHttpx() {
  const find = () => ["python3", "/usr/bin/python3"].find((python) => output(python, ["-c", "import httpx"]) !== null);
  if (find() === undefined) await debianPackages(["python3", "python3-httpx"], `${NEEDS} a python3 with httpx`);
  return find() ?? fail(`${NEEDS} a python3 with httpx; there is none`);
}

/**
 * Installs the missing programs for the examples. Returns variables for the tests. Ends the script
 * if a program cannot be installed.
 */
export async function interpreters() {
  await programs(["curl", "jq"], ["curl", "jq"], `${NEEDS} curl and jq`);
  const [go] = await programs(["go"], ["golang-go"], `${NEEDS} go`);
  const [ansible] = await programs(["ansible-playbook"], ["ansible-core"], `${NEEDS} ansible-playbook`);
  return { FARHAND_GO: go, FARHAND_ANSIBLE: ansible, FARHAND_PYTHON: await pythonWithHttpx() };
}
