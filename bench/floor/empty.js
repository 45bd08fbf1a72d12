// The floor: the cost of a Worker that only responds.
export default {
  fetch() {
    return Response.json({ authenticated: false });
  },
};
