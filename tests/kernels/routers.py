"""Ways in which routers choose experts, one of each kind."""

from specdecode_kernels import RoutingConfig

EXPERTS = 12
ROUTERS = {
    "softmax": RoutingConfig(top_k=3, scores="softmax"),
    "normalized softmax": RoutingConfig(top_k=3, scores="softmax", is_normalized=True, scale=2.5),
    "softmax of the best": RoutingConfig(top_k=3, scores="softmax_of_top_k"),
    "sigmoid": RoutingConfig(top_k=1, scores="sigmoid"),
    "sigmoid of the best": RoutingConfig(top_k=2, scores="sigmoid_of_top_k"),
    "groups": RoutingConfig(
        top_k=3, scores="sigmoid", is_normalized=True, num_groups=4, top_groups=2, scale=1.5
    ),
    "sparsemixer": RoutingConfig(top_k=2, scores="sparsemixer", jitter=0.3),
}
