// A peer: a Worker that only responds. Its cost is a lower bound for any request.
export default {
  fetch() {
    return Response.json({ authenticated: false });
  },
};
