use super::*;
use crate::graph::ActivationKind;

/// Shape rules as a table: operator, inputs, tensors, output (`Err` holds a part of the message).
#[test]
fn operators_accept_what_fits_and_name_what_does_not() {
    let (x, wide) = (Shape::float(8, 4), Shape::float(8, 12));
    let tokens = Shape::tokens(8);
    let attention = |heads, dropout| OpKind::CausalAttention { heads, scale: 0.5, dropout };
    let gelu = OpKind::Activation { kind: ActivationKind::Gelu };
    type Case<'a> = (OpKind, &'a [Shape], &'a [&'a [usize]], Result<Option<Shape>, &'a str>);
    let cases: &[Case<'_>] = &[
        (OpKind::Embedding, &[tokens], &[&[50, 4]], Ok(Some(x))),
        (OpKind::Embedding, &[x], &[&[50, 4]], Err("type Token")),
        (OpKind::Embedding, &[tokens], &[], Err("1 to 1 tensors, not 0")),
        (OpKind::AddPosition, &[x], &[&[9, 4]], Ok(Some(x))),
        (OpKind::AddPosition, &[x], &[&[7, 4]], Err("7 positions")),
        (OpKind::Dropout { rate: 0.0 }, &[x], &[], Ok(Some(x))),
        (OpKind::Dropout { rate: 1.0 }, &[x], &[], Err("less than 1")),
        (OpKind::Dropout { rate: f32::NAN }, &[x], &[], Err("less than 1")),
        (OpKind::Add, &[x, x], &[], Ok(Some(x))),
        (OpKind::Add, &[x, wide], &[], Err("8 x 4")),
        (OpKind::Add, &[x], &[], Err("reads 2 values, not 1")),
        (OpKind::LayerNorm { epsilon: 1e-5 }, &[x], &[&[4], &[4]], Ok(Some(x))),
        (OpKind::LayerNorm { epsilon: 1e-5 }, &[x], &[&[4], &[5]], Err("tensor 1 must be [4]")),
        (OpKind::LayerNorm { epsilon: 0.0 }, &[x], &[&[4], &[4]], Err("epsilon")),
        (OpKind::Linear, &[x], &[&[12, 4], &[12]], Ok(Some(wide))),
        (OpKind::Linear, &[x], &[&[12, 4]], Ok(Some(wide))),
        (OpKind::Linear, &[x], &[&[4, 12]], Err("must be [4, 4]")),
        (OpKind::Linear, &[x], &[&[48]], Err("two dimensions")),
        (gelu, &[x], &[], Ok(Some(x))),
        (gelu, &[x], &[&[4]], Err("0 to 0 tensors")),
        (attention(2, 0.1), &[wide], &[], Ok(Some(x))),
        (attention(3, 0.1), &[wide], &[], Err("3 equal heads")),
        (attention(0, 0.1), &[wide], &[], Err("0 equal heads")),
        (attention(2, -0.1), &[wide], &[], Err("dropout")),
        (OpKind::CrossEntropy, &[x, tokens], &[&[50, 4]], Ok(None)),
        (OpKind::CrossEntropy, &[x, tokens], &[&[50, 4], &[50]], Ok(None)),
        (OpKind::CrossEntropy, &[x, Shape::tokens(7)], &[&[50, 4]], Err("input 1")),
    ];
    for (op, inputs, params, expected) in cases {
        let io = Signature { inputs: inputs.to_vec(), params: params.to_vec() };
        match (operator(op).output(&io), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, *expected, "{op:?}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{op:?}: {error}"),
            (found, expected) => panic!("{op:?}: {found:?} is not {expected:?}"),
        }
    }
}

#[test]
fn products_count_two_operations_a_multiply_add() {
    let flops = |op: &OpKind, inputs: &[Shape], params: &[&[usize]]| {
        operator(op).flops(&Signature { inputs: inputs.to_vec(), params: params.to_vec() })
    };
    let x = Shape::float(8, 4);
    let linear = flops(&OpKind::Linear, &[x], &[&[12, 4]]);
    let (forward, backward) = (2 * 8 * 4 * 12, 4 * 8 * 4 * 12);
    assert_eq!(linear, Flops { forward, backward, forward_sums: 8 * 12, backward_sums: 8 * 4 });
    // 8 rows attend to 1, 2, ... 8 rows: 36 pairs, scores and values over 4 features.
    let attention = flops(&OpKind::CausalAttention { heads: 2, scale: 0.5, dropout: 0.0 }, &[Shape::float(8, 12)], &[]);
    assert_eq!(attention.forward, 36 * 2 * 2 * 4);
    assert_eq!(flops(&OpKind::Add, &[x, x], &[]), Flops::default());
}
