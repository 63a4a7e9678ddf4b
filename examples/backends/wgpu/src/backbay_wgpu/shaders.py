"""WGSL around the body of a kernel: elements of each dtype, tensors with strides, and one element or row per invocation.

Shapes, strides and numbers are data, so a pipeline serves all shapes: it depends on the body and on the dtypes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from backbay.plugin import DType, Node

LANES = 64
TENSOR = 9  # words of a tensor: its offset, four strides and four extents, in elements


@dataclass(frozen=True)
class Shader:
    """A kernel's work on one node.

    body       WGSL. For an element: `i` is its number, `c` its coordinates. For a row: `c` are the coordinates of its first
               element, and `lane` is one of LANES that share it. Tensor 0 is the result; numN(place) reads a number of
               operand N, bitsN(place) an element as it is stored, put(place, number) and put_bits write.
    operands   the operands that it reads
    over       the extents of the elements, or of the rows if `rows`; by default those of the result
    words      numbers that the body reads by word(n), or number(n) for floats
    """

    body: str
    operands: Sequence[Node]
    over: Sequence[int] | None = None
    words: Sequence[int | float] = ()
    rows: bool = False


READ = {
    DType.F32: "return bitcast<f32>(bits{n}(at));",
    DType.I32: "return f32(bitcast<i32>(bits{n}(at)));",
    DType.F16: "return from_f16(bits{n}(at));",
    DType.BF16: "return bitcast<f32>(bits{n}(at) << 16u);",
}
STORED = {
    DType.F32: "bitcast<u32>(v)",
    DType.I32: "bitcast<u32>(i32(v))",
    DType.F16: "to_f16(v)",
    DType.BF16: "to_bf16(v)",
}
# Two elements of 16 bits share a word, and two invocations may write them. An element of 64 bits is written from 32.
WRITE = {
    2: "let s = (at & 1u) * 16u; atomicAnd(&result[at >> 1u], ~(0xffffu << s)); atomicOr(&result[at >> 1u], v << s);",
    4: "result[at] = v;",
    8: "result[2u * at] = v; result[2u * at + 1u] = select(0u, 0xffffffffu, bitcast<i32>(v) < 0);",
}
I64 = """
fn put(at: u32, v: f32) {
    let b = bitcast<u32>(v); let m = (b & 0x7fffffu) | 0x800000u; let e = (b >> 23u) & 0xffu;
    if (e < 158u) { put_bits(at, bitcast<u32>(i32(v))); return; }
    let s = min(e - 150u, 63u);
    var lo = m << min(s, 31u); var hi = m >> (32u - min(s, 31u));
    if (s > 31u) { lo = 0u; hi = m << (s - 32u); }
    if (v < 0.0) { lo = ~lo + 1u; hi = ~hi + select(0u, 1u, lo == 0u); }
    result[2u * at] = lo; result[2u * at + 1u] = hi;
}
"""

COMMON = """
fn word(n: u32) -> u32 { return given[5u + TENSORS * 9u + n]; }
fn number(n: u32) -> f32 { return bitcast<f32>(word(n)); }
fn extent(t: u32, d: u32) -> u32 { return given[5u + t * 9u + 5u + d]; }
fn stride(t: u32, d: u32) -> u32 { return given[5u + t * 9u + 1u + d]; }
fn at(t: u32, c: vec4<u32>) -> u32 {
    let b = 5u + t * 9u;
    return given[b] + c.x * given[b + 1u] + c.y * given[b + 2u] + c.z * given[b + 3u] + c.w * given[b + 4u];
}
fn unravel(i: u32, b: u32) -> vec4<u32> {
    let x = given[b]; let y = given[b + 1u]; let z = given[b + 2u];
    return vec4<u32>(i % x, i / x % y, i / x / y % z, i / x / y / z);
}
fn logical(t: u32, i: u32) -> vec4<u32> { return unravel(i, 5u + t * 9u + 5u); }
fn extents(t: u32) -> vec4<u32> { return vec4<u32>(extent(t, 0u), extent(t, 1u), extent(t, 2u), extent(t, 3u)); }

fn from_f16(h: u32) -> f32 {
    let s = (h & 0x8000u) << 16u; let e = (h >> 10u) & 31u; let m = h & 1023u;
    if (e == 31u) { return bitcast<f32>(s | 0x7f800000u | (m << 13u)); }
    if (e == 0u) { return bitcast<f32>(s | bitcast<u32>(f32(m) * 5.9604644775390625e-8)); }
    return bitcast<f32>(s | ((e + 112u) << 23u) | (m << 13u));
}
fn to_f16(v: f32) -> u32 {
    let b = bitcast<u32>(v); let s = (b >> 16u) & 0x8000u; let a = b & 0x7fffffffu;
    if (a > 0x7f800000u) { return s | 0x7e00u; }
    if (a >= 0x477ff000u) { return s | 0x7c00u; }
    if (a < 0x38800000u) { return s | u32(round(bitcast<f32>(a) * 16777216.0)); }
    return s | (((a + 0xfffu + ((a >> 13u) & 1u)) >> 13u) - 0x1c000u);
}
fn to_bf16(v: f32) -> u32 {
    let b = bitcast<u32>(v);
    if ((b & 0x7fffffffu) > 0x7f800000u) { return (b >> 16u) | 0x40u; }
    return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}
"""

EXP = """
fn power_of_2(k: i32) -> f32 { return bitcast<f32>(u32(k + 127) << 23u); }
fn e_to(x: f32) -> f32 {
    if (!(x > -87.4)) { return select(0.0, x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u); }
    if (x > 88.8) { return x * 1e38 * 10.0; }
    let k = floor(x * 1.442695040888963 + 0.5);
    let r = (x - k * 0.693359375) + k * 2.12194440e-4;
    let p = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r
        + 1.6666665459e-1) * r + 5.0000001201e-1;
    let half = i32(k) / 2;
    return (p * r * r + r + 1.0) * power_of_2(half) * power_of_2(i32(k) - half);
}
"""

ROW = """
var<workgroup> part: array<f32, 64>;
fn total(lane: u32, v: f32) -> f32 {
    part[lane] = v;
    workgroupBarrier();
    for (var s = 32u; s > 0u; s = s >> 1u) {
        if (lane < s) { part[lane] = part[lane] + part[lane + s]; }
        workgroupBarrier();
    }
    let r = part[0];
    workgroupBarrier();
    return r;
}
fn largest(lane: u32, v: f32) -> f32 {
    part[lane] = v;
    workgroupBarrier();
    for (var s = 32u; s > 0u; s = s >> 1u) {
        if (lane < s) { part[lane] = max(part[lane], part[lane + s]); }
        workgroupBarrier();
    }
    let r = part[0];
    workgroupBarrier();
    return r;
}
"""


@cache
def code(body: str, result: DType, operands: tuple[DType, ...], rows: bool) -> str:
    """The WGSL of a pipeline."""
    half = result.type_size == 2
    parts = [
        "@group(0) @binding(0) var<storage, read> given: array<u32>;",
        f"@group(0) @binding(1) var<storage, read_write> result: array<{'atomic<u32>' if half else 'u32'}>;",
        COMMON.replace("TENSORS", f"{1 + len(operands)}u"),
    ]
    for n, dtype in enumerate(operands, 1):
        element = (
            "(stored{n}[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu"
            if dtype.type_size == 2
            else "stored{n}[at]"
        )
        parts += [
            f"@group(0) @binding({n + 1}) var<storage, read> stored{n}: array<u32>;",
            f"fn bits{n}(at: u32) -> u32 {{ return {element.format(n=n)}; }}",
            f"fn num{n}(at: u32) -> f32 {{ {READ[dtype].format(n=n)} }}",
        ]
    parts += [
        f"fn put_bits(at: u32, v: u32) {{ {WRITE[result.type_size]} }}",
        I64 if result is DType.I64 else f"fn put(at: u32, v: f32) {{ put_bits(at, {STORED[result]}); }}",
        EXP,
        ROW if rows else "",
        f"@compute @workgroup_size({LANES}) fn main(@builtin(workgroup_id) group: vec3<u32>,",
        "    @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {",
        "    let lane = local.x;",
        f"    let i = (group.x + group.y * groups.x){'' if rows else f' * {LANES}u + lane'};",
        "    if (i >= given[0]) { return; }",
        "    let c = unravel(i, 1u);",
        body,
        "}",
    ]
    return "\n".join(parts)


def given_nbytes(shader: Shader) -> int:
    return 4 * (5 + TENSOR * (1 + len(shader.operands)) + len(shader.words))


def given(shader: Shader, result: Node) -> np.ndarray:
    """The data of a dispatch: the count and extents of its elements, the tensors, and the words."""
    over = shader.over if shader.over is not None else result.shape
    extents = [*over, *[1] * (4 - len(over))]
    words = [int(np.prod(extents, dtype=np.int64)), *extents]
    for node in (result, *shader.operands):
        unit, rank = node.dtype.type_size, node.rank
        words += [node.offset // unit if node.size else 0]
        words += [node.stride(n) // unit if n < rank else 0 for n in range(4)]
        words += [node.shape[n] if n < rank else 1 for n in range(4)]
    for word in shader.words:
        words.append(int(np.float32(word).view(np.uint32)) if isinstance(word, float) else word & 0xFFFFFFFF)
    return np.array(words, np.uint32)
