// Gets what the programs in examples/ need: from PATH, or Debian's packages.
import { debianPackages, programs } from "./toolchain.mjs";
import { fail, output } from "./lib.mjs";

const NEEDS = "the tests of examples/ need";

/** Where a Python with httpx is: the one on PATH, or Debian's. */
function pythonWithHttpx() {
  const find = () => ["python3", "/usr/bin/python3"].find((python) => output(python, ["-c", "import httpx"]) !== null);
  if (find() === undefined) debianPackages(["python3", "python3-httpx"], `${NEEDS} a python3 with httpx`);
  return find() ?? fail(`${NEEDS} a python3 with httpx; there is none`);
}

/** Installs the missing interpreters of the examples. Returns variables for the tests. Ends the script if one cannot be had. */
export function interpreters() {
  programs(["curl", "jq"], ["curl", "jq"], `${NEEDS} curl and jq`);
  const [go] = programs(["go"], ["golang-go"], `${NEEDS} go`);
  const [ansible] = programs(["ansible-playbook"], ["ansible-core"], `${NEEDS} ansible-playbook`);
  return { FARHAND_GO: go, FARHAND_ANSIBLE: ansible, FARHAND_PYTHON: pythonWithHttpx() };
}
