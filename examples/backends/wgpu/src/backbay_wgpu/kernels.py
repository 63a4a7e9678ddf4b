"""The kernels: a function for each op, with the op's parameters, that says what the device does for a node."""

from collections.abc import Sequence
from math import ceil, floor, inf, log, pi

from backbay import ops
from backbay.ops import Yarn
from backbay.plugin import DType, KernelTable, Node

from .shaders import Shader

kernel = KernelTable()
UNROLLED = 8
"""Rows in an iteration: lavapipe ends the loops of an invocation after 65,535 iterations, and says nothing."""

# -- elementwise -----------------------------------------------------------------------------------------


def each(expression: str, *operands: Node, words: Sequence[int | float] = ()) -> Shader:
    """An element of the result from the elements `x` in its place."""
    return Shader(f"let x = num1(at(1u, c)); put(at(0u, c), {expression});", operands, words=words)


TANH = """
let x = num1(at(1u, c)); let a = abs(x); let s = x * x; let e = e_to(-2.0 * a);
let near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869489))));
let far = (1.0 - e) / (1.0 + e);
put(at(0u, c), select(select(far, -far, x < 0.0), near, a < 0.25));
"""
# erfc by W. H. Press and others, Numerical Recipes, with an error below 1.2e-7 of its value
GELU_ERF = """
let x = num1(at(1u, c)); let z = abs(x) * 0.70710678; let t = 1.0 / (1.0 + 0.5 * z);
let p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807
    + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
let tail = t * e_to(p - z * z);
put(at(0u, c), 0.5 * x * select(2.0 - tail, tail, x < 0.0));
"""

kernel(ops.sqrt)(lambda x: each("sqrt(x)", x))
kernel(ops.exp)(lambda x: each("e_to(x)", x))
kernel(ops.sigmoid)(lambda x: each("1.0 / (1.0 + e_to(-x))", x))
kernel(ops.tanh)(lambda x: Shader(TANH, [x]))
kernel(ops.gelu_erf)(lambda x: Shader(GELU_ERF, [x]))
kernel(ops.scale)(lambda x, s: each("x * number(0u)", x, words=[float(s)]))


@kernel(ops.clamp)
def clamp(x: Node, min: float, max: float) -> Shader:
    limits = "select(select(x, number(1u), x > number(1u)), number(0u), x < number(0u))"
    return each(limits, x, words=[float(min), float(max)])


@kernel(ops.fill)
def fill(x: Node, value: float) -> Shader:
    if x.dtype.is_integer:
        return Shader("put_bits(at(0u, c), word(0u));", [], words=[int(value)])
    return Shader("put(at(0u, c), number(0u));", [], words=[float(value)])


@kernel(ops.cast)
def cast(x: Node, dtype: DType) -> Shader:
    return moved(x, dtype)


def arithmetic(sign: str, x: Node, t2: Node) -> Shader:
    """The second operand is repeated."""
    return Shader(f"put(at(0u, c), num1(at(1u, c)) {sign} num2(at(2u, c % extents(2u))));", [x, t2])


kernel(ops.add)(lambda x, t2: arithmetic("+", x, t2))
kernel(ops.sub)(lambda x, t2: arithmetic("-", x, t2))
kernel(ops.mul)(lambda x, t2: arithmetic("*", x, t2))
kernel(ops.div)(lambda x, t2: arithmetic("/", x, t2))

# -- products --------------------------------------------------------------------------------------------

MULMAT = """
let slices = extents(2u) / max(extents(1u), vec4<u32>(1u));
var w = at(1u, vec4<u32>(0u, c.x, c.z / slices.z, c.w / slices.w));
var x = at(2u, vec4<u32>(0u, c.y, c.z, c.w));
let dw = stride(1u, 0u); let dx = stride(2u, 0u); let n = extent(1u, 0u);
var sum = vec4<f32>(0.0);
var k = 0u;
for (; k + 4u <= n; k += 4u) {
    sum += vec4<f32>(num1(w), num1(w + dw), num1(w + 2u * dw), num1(w + 3u * dw))
        * vec4<f32>(num2(x), num2(x + dx), num2(x + 2u * dx), num2(x + 3u * dx));
    w += 4u * dw; x += 4u * dx;
}
var rest = 0.0;
for (; k < n; k += 1u) { rest += num1(w) * num2(x); w += dw; x += dx; }
put(at(0u, c), (sum.x + sum.y) + (sum.z + sum.w) + rest);
"""

kernel(ops.mulmat)(lambda w, x: Shader(MULMAT, [w, x]))
kernel(ops.mulmat_full_prec)(lambda w, x: Shader(MULMAT, [w, x]))

# -- rows ------------------------------------------------------------------------------------------------


def each_row(body: str, *operands: Node | None, words: Sequence[int | float] = ()) -> Shader:
    """A row of the result from the row of the first operand, which begins at `x`."""
    there = [operand for operand in operands if operand is not None]
    assert there
    head = "let x = at(1u, c); let d = stride(1u, 0u); let n = extent(1u, 0u); let y = at(0u, c);\n"
    return Shader(head + body, there, over=(1, *there[0].shape[1:]), words=words, rows=True)


SUM = (
    "var s = 0.0; for (var k = lane; k < n; k += 64u) { s += num1(x + k * d); }\nlet sum = total(lane, s);\n"
)
SOFTMAX = """
var m = number(0u);
for (var k = lane; k < n; k += 64u) { m = max(m, num1(x + k * d)); }
let top = largest(lane, m);
var s = 0.0;
for (var k = lane; k < n; k += 64u) { s += e_to(num1(x + k * d) - top); }
let sum = total(lane, s);
for (var k = lane; k < n; k += 64u) { put(y + k, e_to(num1(x + k * d) - top) / sum); }
"""

kernel(ops.sum_rows)(lambda x: each_row(SUM + "if (lane == 0u) { put(y, sum); }", x))
kernel(ops.mean)(lambda x: each_row(SUM + "if (lane == 0u) { put(y, sum / f32(n)); }", x))
kernel(ops.softmax)(lambda x: each_row(SOFTMAX, x, words=[-inf]))


@kernel(ops.rms_norm)
def rms_norm(x: Node, weight: Node | None = None, eps: float = 1e-5) -> Shader:
    times = "" if weight is None else " * num2(at(2u, vec4<u32>(k, 0u, 0u, 0u)))"
    body = f"""
    var s = 0.0; for (var k = lane; k < n; k += 64u) {{ let v = num1(x + k * d); s += v * v; }}
    let root = sqrt(total(lane, s) / f32(n) + number(0u));
    for (var k = lane; k < n; k += 64u) {{ put(y + k, num1(x + k * d) / root{times}); }}
    """
    return each_row(body, x, weight, words=[float(eps)])


@kernel(ops.layer_norm)
def layer_norm(x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5) -> Shader:
    there = [operand for operand in (weight, bias) if operand is not None]
    by_name = {
        id(operand): f"num{n}(at({n}u, vec4<u32>(k, 0u, 0u, 0u)))" for n, operand in enumerate(there, 2)
    }
    times = "" if weight is None else f" * {by_name[id(weight)]}"
    plus = "" if bias is None else f" + {by_name[id(bias)]}"
    body = f"""{SUM}
    let mean = sum / f32(n);
    var q = 0.0; for (var k = lane; k < n; k += 64u) {{ let v = num1(x + k * d) - mean; q += v * v; }}
    let root = sqrt(total(lane, q) / f32(n) + number(0u));
    for (var k = lane; k < n; k += 64u) {{ put(y + k, (num1(x + k * d) - mean) / root{times}{plus}); }}
    """
    return each_row(body, x, weight, bias, words=[float(eps)])


# -- moving elements -------------------------------------------------------------------------------------


def moved(x: Node, dtype: DType, place: str = "at(1u, logical(1u, i))") -> Shader:
    """Elements of x, in their logical order, as those of another dtype."""
    if x.dtype is dtype or (x.dtype is DType.I32 and dtype is DType.I64):
        return Shader(f"put_bits(at(0u, c), bits1({place}));", [x])
    return Shader(f"put(at(0u, c), num1({place}));", [x])


kernel(ops.contiguous)(lambda x, *shape: moved(x, x.dtype))
kernel(ops.copy)(lambda x, dst: moved(x, dst.dtype))


@kernel(ops.rows)
def rows(x: Node, ids: Node) -> Shader:
    body = "let id = bits2(at(2u, vec4<u32>(c.y, c.z, c.w, 0u)));\n"
    body += "let from_x = at(1u, vec4<u32>(c.x, id, c.z % extent(1u, 2u), c.w % extent(1u, 3u)));\n"
    write = "put_bits(at(0u, c), bits1(from_x));" if x.dtype is DType.I32 else "put(at(0u, c), num1(from_x));"
    return Shader(body + write, [x, ids])


@kernel(ops.set_rows)
def set_rows(x: Node, src: Node, ids: Node) -> Shader:
    """One invocation writes a column, so that one of the rows with the same id is kept."""
    write = "put_bits(to_x, bits1(from_src));" if src.dtype is x.dtype else "put(to_x, num1(from_src));"
    one = f"""
        if (k < extent(1u, 1u)) {{
            let id = bits2(at(2u, vec4<u32>(k, c.z % extent(2u, 1u), c.w % extent(2u, 2u), 0u)));
            let from_src = at(1u, vec4<u32>(c.x, k, c.z, c.w));
            let to_x = at(0u, vec4<u32>(c.x, id, c.z, c.w));
            {write}
            k += 1u;
        }}"""
    body = f"var k = 0u; while (k < extent(1u, 1u)) {{ {one * UNROLLED} }}"
    shape = [*src.shape, 1, 1, 1]
    over = (shape[0], 1, shape[2], shape[3]) if src.size else (0,)
    return Shader(body, [src, ids], over=over)


@kernel(ops.concat)
def concat(x: Node, t2: Node, dim: int) -> Shader:
    body = f"""
    var c2 = c;
    if (c[{dim}] < extent(1u, {dim}u)) {{ put_bits(at(0u, c), bits1(at(1u, c))); }}
    else {{ c2[{dim}] -= extent(1u, {dim}u); put_bits(at(0u, c), bits2(at(2u, c2))); }}
    """
    return Shader(body, [x, t2])


@kernel(ops.repeat)
def repeat(x: Node, dim: int, n: int) -> Shader:
    return Shader("put_bits(at(0u, c), bits1(at(1u, c % extents(1u))));", [x])


# -- rope ------------------------------------------------------------------------------------------------

ROPE = """
let pairs = word(0u); let d = c.x;
if (d >= 2u * pairs) { put_bits(at(0u, c), bits1(at(1u, c))); return; }
let pair = select(d % pairs, d / 2u, word(1u) == 1u);
let second = select(d >= pairs, d % 2u == 1u, word(1u) == 1u);
let first = select(pair, 2u * pair, word(1u) == 1u);
let step = select(pairs, 1u, word(1u) == 1u);
let a = num1(at(1u, vec4<u32>(first, c.y, c.z, c.w)));
let b = num1(at(1u, vec4<u32>(first + step, c.y, c.z, c.w)));
let entry = 3u + 4u * pair;
let p = bits2(at(2u, vec4<u32>(c.z + extent(1u, 2u) * word(entry), 0u, 0u, 0u)));
TURN
let q = (turn + 0x20000000u) >> 30u;
let r = f32(bitcast<i32>(turn - (q << 30u))) * 1.4629180792671596e-9;
let s = r * r;
let sine = r * (1.0 + s * (-1.6666654611e-1 + s * (8.3321608736e-3 + s * -1.9515295891e-4)));
let cosine = 1.0 + s * (-0.5 + s * (4.166664568298827e-2 + s * (-1.388731625493765e-3 + s * 2.443315711809948e-5)));
let odd = (q & 1u) == 1u;
var co = select(cosine, sine, odd) * select(1.0, -1.0, ((q + 1u) & 2u) == 2u) * number(2u);
var si = select(sine, cosine, odd) * select(1.0, -1.0, (q & 2u) == 2u) * number(2u);
BROKEN
put(at(0u, c), select(a * co - b * si, a * si + b * co, second));
"""
# An angle is a fraction of a turn, in units of 2^-64 of it: the product with a position wraps around, and loses nothing.
EXACT = """
let hi = word(entry + 1u); let lo = word(entry + 2u);
let mid = (p & 0xffffu) * (lo >> 16u) + (((p & 0xffffu) * (lo & 0xffffu)) >> 16u);
let cross = (p >> 16u) * (lo & 0xffffu) + (mid & 0xffffu);
var turn = p * hi + (p >> 16u) * (lo >> 16u) + (mid >> 16u) + (cross >> 16u);
if (bitcast<i32>(p) < 0) { turn -= lo; }
"""
BY_FACTORS = """
let turns = f32(bitcast<i32>(p)) * number(entry + 3u) / num3(at(3u, vec4<u32>(pair, 0u, 0u, 0u)));
let fraction = turns - floor(turns);
let turn = u32(fraction * 65536.0) * 65536u + u32(fract(fraction * 65536.0) * 65536.0);
"""
BROKEN = "if (!(abs(turns) < 1e30)) { co = turns - turns; co = select(co, number(3u + 4u * pairs), true); si = co; }"


@kernel(ops.rope)
def rope(
    x: Node,
    positions: Node,
    dim: int,
    base: float,
    scale: float = 1.0,
    mode: str = "normal",
    factors: Node | None = None,
    sections: Sequence[int] = (0, 0, 0, 0),
    yarn: Yarn | None = None,
) -> Shader:
    pairs = dim if mode == "vision" else dim // 2
    amount = 1.0
    if yarn is not None:
        amount = yarn.attn_factor
        if yarn.ext_factor:
            amount *= 1 + 0.1 * log(1 / scale)
    words: list[int | float] = [pairs, int(mode == "normal"), float(amount)]
    for i in range(pairs):
        component, exponent = component_of(i, mode, sections)
        turns = base ** (-2.0 * exponent / dim) * share(i, dim, base, scale, yarn) / (2 * pi)
        fixed = round((turns - floor(turns)) * 2.0**64) % 2**64
        words += [component, fixed >> 32, fixed & 0xFFFFFFFF, float(turns)]
    words.append(float("nan"))
    body = ROPE.replace("TURN", EXACT if factors is None else BY_FACTORS)
    body = body.replace("BROKEN", "" if factors is None else BROKEN)
    return Shader(body, [x, positions] if factors is None else [x, positions, factors], words=words)


def component_of(i: int, mode: str, sections: Sequence[int]) -> tuple[int, int]:
    """The component of the position of pair i, and the exponent of its frequency."""
    if mode == "vision":
        return (0, i) if i < sections[0] else (1, i - sections[0])
    if mode == "multi-section":
        at = i % sum(sections)
        return next(n for n in range(4) if at < sum(sections[: n + 1])), i
    return 0, i


def share(i: int, dim: int, base: float, scale: float, yarn: Yarn | None) -> float:
    """What the angle of pair i is of theta."""
    if yarn is None or not yarn.ext_factor:
        return scale

    def edge(beta: float) -> float:
        return dim * log(yarn.n_ctx_orig / (2 * pi * beta)) / (2 * log(base))

    low, high = max(0, floor(edge(yarn.beta_fast))), min(dim - 1, ceil(edge(yarn.beta_slow)))
    ramp = yarn.ext_factor * (1 - min(max((i - low) / max(0.001, high - low), 0), 1))
    return scale * (1 - ramp) + ramp
