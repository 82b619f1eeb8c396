"""networkx: graphs, paths, centrality, flows, and files."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import networkx as nx

    graph = nx.Graph()
    graph.add_weighted_edges_from([("a", "b", 1), ("b", "c", 2), ("a", "c", 5), ("c", "d", 1)])
    path = nx.shortest_path(graph, "a", "d", weight="weight")
    assert path == ["a", "b", "c", "d"]
    karate = nx.karate_club_graph()
    ranks = nx.pagerank(karate)
    groups = nx.community.greedy_modularity_communities(karate)

    directed = nx.DiGraph([(1, 2), (2, 3), (1, 3), (3, 4)])
    flow = nx.DiGraph()
    flow.add_edge("s", "a", capacity=3)
    flow.add_edge("a", "t", capacity=2)
    flow.add_edge("s", "t", capacity=1)

    for name, write, read in (
        ("g.graphml", nx.write_graphml, nx.read_graphml),
        ("g.gml", nx.write_gml, nx.read_gml),
        ("g.gexf", nx.write_gexf, nx.read_gexf),
        ("g.edges", nx.write_weighted_edgelist, nx.read_weighted_edgelist),
    ):
        file = os.path.join(folder, name)
        write(graph, file)
        assert sorted(read(file).nodes) == ["a", "b", "c", "d"]
    layout = nx.spring_layout(graph, seed=1)
    return {
        "path": path,
        "length": nx.dijkstra_path_length(graph, "a", "d"),
        "top": max(ranks, key=ranks.get),
        "groups": sorted(len(group) for group in groups),
        "order": list(nx.topological_sort(directed)),
        "flow": nx.maximum_flow_value(flow, "s", "t"),
        "tree": sorted(sorted(edge) for edge in nx.minimum_spanning_edges(graph, data=False)),
        "between": {k: round(v, 4) for k, v in nx.betweenness_centrality(graph).items()},
        "data": len(nx.node_link_data(graph)["nodes"]),
        "layout": len(layout),
        "same": nx.is_isomorphic(nx.cycle_graph(4), nx.grid_2d_graph(2, 2)),
        "matrix": nx.to_numpy_array(graph).tolist(),
    }
