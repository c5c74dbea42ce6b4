// The data of the page: a table in which every value stands once (reports/packing.py).
const unpack = ({ shapes, nodes, root, lazy }) => {
  const made = new Array(nodes.length);
  const read = (place) => {
    const node = nodes[place];
    if (node === null || typeof node !== "object") return node;
    if (made[place] !== undefined) return made[place];
    const shape = node[0];
    let value;
    if (shape < 0) {
      value = new Array(node.length - 1);
      for (let i = 1; i < node.length; i += 1) value[i - 1] = read(node[i]);
    } else {
      value = {};
      const keys = shapes[shape];
      for (let i = 1; i < node.length; i += 1) {
        // defineProperty, not assignment: a key may be called __proto__.
        Object.defineProperty(value, keys[i - 1], { value: read(node[i]), enumerable: true });
      }
    }
    made[place] = value;
    return value;
  };
  return { root: read(root), lazy: (index) => read(lazy[index]) };
};
