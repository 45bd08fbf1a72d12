// The floor: what a Worker costs that does nothing but answer.
export default {
  fetch() {
    return Response.json({ authenticated: false });
  },
};
