// What the sums of the threads of a workgroup come to, and where they are gathered.

struct Reduced {
    // Over the LANES threads that share rows; right for the first of them.
    sums: vec4<f32>,
    // Over all threads, with NORM.
    squares: f32,
}

var<workgroup> sums_of: array<vec4<f32>, THREADS>;
var<workgroup> squares_of: array<f32, THREADS>;
